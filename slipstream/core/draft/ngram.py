"""A session's own text as something to copy from: what once followed its latest tokens.

Knows token ids only.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import InvalidRequest

_ENCODING = f"utf-32-{sys.byteorder[0]}e"
MAX_TOKEN_ID = sys.maxunicode
"""Largest token id that is looked up; every vocabulary ends far below."""
LONGEST_MATCH = 16
"""Matches are not measured beyond."""


@dataclass(slots=True)
class OwnText:
    """The tokens of a session, in which the latest ones are searched for.

    With tokens 1 2 3 4 2 3 and n-grams of up to 3: no 4 2 3 and no 3-gram at all occurred
    before, but 2 3 did, at the start, and 4 followed it.

    There is no index, which for a long prompt would take a second to build: the tokens are kept as
    the characters of a string as well, and a search of it takes microseconds.
    """

    max_n: int = 6
    tokens: list[int] = field(default_factory=list)
    _text: str = ""
    """One character for each token."""

    def append(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens. Raises `InvalidRequest` for an id that no vocabulary has."""
        self._text += _text_of(tokens)
        self.tokens += tokens

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        del self.tokens[length:]
        self._text = self._text[:length]

    def after(self, path: Sequence[int] = ()) -> tuple[int, int] | None:
        """Return the token behind the latest longest match of the text and `path`, and its length.

        None where not even the last token occurred before. A match may reach into `path`.
        """
        text = self._text + _text_of(path) if path else self._text
        size, end = len(text), -1
        for n in range(1, min(self.max_n, size - 1) + 1):
            start = text.rfind(text[size - n :], 0, size - 1)
            if start < 0:  # nor does anything longer occur
                break
            end = start + n
        return None if end < 0 else (ord(text[end]), _match(text, end))


def _match(text: str, end: int) -> int:
    """Return how many characters before `end` are those that `text` ends with."""
    size, limit = len(text), min(LONGEST_MATCH, end)
    for length in range(limit):
        if text[end - 1 - length] != text[size - 1 - length]:
            return length
    return limit


def _text_of(tokens: Sequence[int]) -> str:
    """Return the string whose code points are these token ids."""
    try:
        return array("I", tokens).tobytes().decode(_ENCODING, "surrogatepass")
    except (OverflowError, UnicodeDecodeError):
        bad = next(token for token in tokens if not 0 <= token <= MAX_TOKEN_ID)
        raise InvalidRequest(
            f"n-grams take token ids from 0 to {MAX_TOKEN_ID}, but got {bad}"
        ) from None
