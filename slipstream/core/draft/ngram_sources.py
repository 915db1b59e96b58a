"""Sources of n-grams: the interface between trees of copies and the texts they copy from.

Knows token ids only: neither files, nor stores, nor drafts.
"""

from collections.abc import Sequence
from typing import Protocol

LATEST = 16
"""Tokens of a session that its n-grams may look at."""


class NgramStore(Protocol):
    """N-grams that were counted once, with the probabilities of what follows them."""

    def after(self, latest: Sequence[int]) -> Sequence[tuple[int, float]]:
        """Return tokens that may follow, with probabilities that add up to 1 at most.

        `latest` are up to `LATEST` tokens, the newest one first.
        """
        ...


PRIOR_WEIGHT = 8.0
"""Tokens that what is assumed before anything was seen counts for."""
_GROUPS = (2, 3, 6)
"""Matches of 1, of 2, of 3 to 5 and of more tokens are learnt about apart."""

_DOUBT = 2.0


class MatchAcceptance:
    """Probability that the token behind a match becomes final, learnt within a session.

    Behind a match of n tokens the next one is right with a probability of n / (n + 2) until
    more is known. (Greedy text of SmolLM2-135M, copied from itself: 0.25, 0.56, 0.62, 0.66, 0.71,
    0.75 for n from 1 to 6, hence a doubt of 2.)
    """

    def __init__(self) -> None:
        self._kept = [0] * (len(_GROUPS) + 1)
        self._tried = [0] * (len(_GROUPS) + 1)

    def of(self, match: int) -> float:
        """Return the probability of the next token behind a match of this length."""
        group = _group(match)
        assumed = PRIOR_WEIGHT * match / (match + _DOUBT)
        return (assumed + self._kept[group]) / (PRIOR_WEIGHT + self._tried[group])

    def learn(self, match: int, *, is_right: bool) -> None:
        """Take in whether the token behind a match of this length became final."""
        group = _group(match)
        self._tried[group] += 1
        self._kept[group] += is_right


class Acceptance:
    """Share of a source's probabilities that holds, learnt within a session."""

    def __init__(self, prior: float) -> None:
        """`prior` is the share that is assumed before anything was seen."""
        self._kept = prior * PRIOR_WEIGHT
        self._expected = PRIOR_WEIGHT

    @property
    def share(self) -> float:
        """Return what to multiply a probability of the source with, at most 1."""
        return min(self._kept / self._expected, 1.0)

    def learn(self, expected: float, *, is_right: bool) -> None:
        """Take in whether a token became final whose candidates had `expected` in all."""
        self._expected += expected
        self._kept += is_right


def _group(match: int) -> int:
    return sum(match >= start for start in _GROUPS)
