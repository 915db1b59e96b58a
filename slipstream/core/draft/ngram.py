"""Sources of n-grams: a session's own text and stores, and how often their guesses hold."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.core.errors import check_token_ids
from slipstream.core.sequence import common_prefix

LATEST = 16
"""Tokens of a session that its n-grams may look at."""


class NgramStore(Protocol):
    """N-grams that were counted once, with the probabilities of what follows them."""

    def after(self, latest: Sequence[int]) -> Sequence[tuple[int, float]]:
        """Return tokens that may follow, with probabilities that add up to 1 at most.

        `latest` are up to `LATEST` tokens, the newest one first.
        """


PRIOR_WEIGHT = 8.0
"""Tokens that what is assumed before anything was seen counts for."""


class Acceptance:
    """Share of a source's probabilities that holds, learnt within a session."""

    def __init__(self) -> None:
        self._kept = self._expected = 0.0

    def share(self, prior: float) -> float:
        """Return what to multiply a probability of the source with, at most 1; `prior` is assumed
        before anything was seen."""
        kept, expected = self._kept + PRIOR_WEIGHT * prior, self._expected + PRIOR_WEIGHT
        return min(kept / expected, 1.0)

    def learn(self, expected: float, *, is_right: bool) -> None:
        """Take in whether a token became final whose candidates had `expected` in all."""
        self._expected += expected
        self._kept += is_right


_ENCODING = f"utf-32-{sys.byteorder[0]}e"
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

    def append(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens. Raises `InvalidRequest` for an id that no vocabulary has."""
        self._text += _text_of(tokens)
        self.tokens += tokens

    def truncate(self, length: int) -> None:
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
        if end < 0:
            return None
        before = text[max(end - LONGEST_MATCH, 0) : end]
        return ord(text[end]), common_prefix(before[::-1], text[-LONGEST_MATCH:][::-1])


def _text_of(tokens: Sequence[int]) -> str:
    """Return the string whose code points are these token ids."""
    try:
        return array("I", tokens).tobytes().decode(_ENCODING, "surrogatepass")
    except (OverflowError, UnicodeDecodeError):
        check_token_ids("a text of n-grams", tokens, sys.maxunicode + 1)
        raise
