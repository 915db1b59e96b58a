"""The control tokens of a tokenizer, and text of callers that must not write them.

A control token ends a turn or names a role. Chat templates write it by its name, and the same name
in a message would be read as the same token: it is broken in two there, so that it stays text.
"""

import re
import secrets
from typing import cast

from tokenizers import AddedToken, Tokenizer

from slipstream.core.errors import InvalidRequest

# Digits alone, which no template rewrites, and no caller can guess.
BREAK = f"{secrets.randbelow(10**16):016d}"


class ControlTokens:
    """The special tokens of a tokenizer. Safe to share between threads."""

    def __init__(self, backend: Tokenizer) -> None:
        """Add a token to `backend` that stands for a break, and is never one of a text's tokens."""
        tokens = [
            token
            for token in backend.get_added_tokens_decoder().values()
            if token.special and token.content.strip()
        ]
        self._names = tuple(sorted(token.content for token in tokens))
        self._stems = frozenset(name[:2] for name in self._names)
        self._first = re.compile(f"(?s:(?={'|'.join(map(re.escape, self._names))}).)")
        self._lengths = range(1, max(map(len, self._names), default=0))
        ends = [(name, end) for name in self._names for end in range(1, len(name))]
        self._beginnings = frozenset(name[:end] for name, end in ends)
        self._endings = frozenset(name[end:] for name, end in ends)
        self._normalizer = backend.normalizer
        names = (token.content for token in tokens if token.normalized)
        self._normalized = tuple(map(self._normal, names)) if self._normalizer else ()
        backend.add_special_tokens([AddedToken(BREAK, normalized=False)])
        self.break_id = cast("int", backend.token_to_id(BREAK))

    def as_text(self, text: str) -> str:
        """Return the text with a break behind the first character of each control token's name.

        Raises `InvalidRequest` where a control token would be left all the same.
        """
        if self._has_name(text):
            text = self._first.sub(lambda match: match[0] + BREAK, text)
        normal = self._normal(text) if self._normalized else ""
        if self._has_name(text) or any(name in normal for name in self._normalized):
            raise InvalidRequest("the text has characters that are a control token of the model")
        return text

    def apart(self, text: str) -> str:
        """Return the text with breaks at ends that could form a name with what is beside them."""
        before = any(text[:length] in self._endings for length in self._lengths)
        behind = any(text[-length:] in self._beginnings for length in self._lengths)
        return before * BREAK + text + behind * BREAK

    def count(self, text: str) -> int:
        """Return how many names of control tokens are in a text."""
        return sum(text.count(name) for name in self._names) if self._has_stem(text) else 0

    def _has_stem(self, text: str) -> bool:
        return any(stem in text for stem in self._stems)

    def _has_name(self, text: str) -> bool:
        return self._has_stem(text) and any(name in text for name in self._names)

    def _normal(self, text: str) -> str:
        return str(self._normalizer.normalize_str(text))
