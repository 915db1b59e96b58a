"""How far to copy what once followed a session's latest tokens.

Pure arithmetic on lengths and counts; knows no tokens, no draft and no tree.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from slipstream.core.errors import InvalidRequest

PRIOR_WEIGHT = 8.0
"""Tokens that what is assumed before anything was seen counts for."""
LONGEST_MATCH = 64
"""Matches are not measured beyond: the next token is all but certain by then."""
_GROUPS = (2, 3, 6)
"""Matches of 1, of 2, of 3 to 5 and of more tokens are learnt about apart."""


@dataclass(frozen=True, slots=True)
class Copying:
    """What a round may copy.

    Matches of at least `shortest` tokens count, and a copy has up to `max_depth` tokens. With a
    copy of which `alone` tokens or more are expected to become final, the draft is not asked. A
    copy that makes a second path beside the draft's costs `branch_price` tokens more.
    """

    shortest: int
    max_depth: int
    alone: float = math.inf
    branch_price: float = 0.0

    def __post_init__(self) -> None:
        if self.shortest < 1 or self.max_depth < 1:
            raise InvalidRequest(
                f"copying {self.max_depth} tokens behind matches of {self.shortest}: both must be"
                " at least 1"
            )
        if not self.alone >= 0:
            raise InvalidRequest(f"alone is {self.alone}, but must be 0 or more")


class Chances:
    """How likely copied tokens become final in one session, learnt as it goes on.

    Behind a match of n tokens the next one is right with a chance of n / (n + 2) until more is
    known. (Greedy text of SmolLM2-135M: 0.25, 0.56, 0.62, 0.66, 0.71, 0.75 for n from 1 to 6.)
    """

    def __init__(self) -> None:
        self._kept = [0] * (len(_GROUPS) + 1)
        self._tried = [0] * (len(_GROUPS) + 1)

    def of(self, match: int) -> float:
        """The chance of the next token behind a match of this length."""
        group = _group(match)
        assumed = PRIOR_WEIGHT * match / (match + 2)
        return (assumed + self._kept[group]) / (PRIOR_WEIGHT + self._tried[group])

    def reaches(self, match: int, max_depth: int) -> tuple[float, ...]:
        """Return the probability of each token behind a match to become final."""
        return tuple(accumulate((self.of(match + at) for at in range(max_depth)), operator.mul))

    def learn(self, match: int, copied: Sequence[int], became: Sequence[int]) -> None:
        """Take in which tokens `became` final where `copied` were expected behind a match."""
        for index, (guess, token) in enumerate(zip(copied, became, strict=False)):
            group = _group(match + index)
            self._tried[group] += 1
            if guess != token:
                return
            self._kept[group] += 1


def _group(match: int) -> int:
    return sum(match >= start for start in _GROUPS)
