"""Number of rows that each running session may verify. Pure; time is an argument.

Cost is that of a step in which every session does alike: what one of them takes for itself is
taken from the others, so that none may count on their frugality.
"""

import math
from collections.abc import Callable

from slipstream.core.policy.cost_curve import CostCurve, ladder
from slipstream.core.row_costs import Offer, RowCosts

MAX_ROWS = 128
"""Of one session: the largest tree and its root."""
_ALONE = 4.0
"""Plain rounds that a round of a session may cost which has the target to itself. It weighs costs
against the probabilities of its own nodes, which are known here only."""
_SHORT_STEP = 8
"""A staircase with shorter steps counts as a slope."""
_PLAIN = 1.01
"""Weight of plain rounds: drafting has costs that can't be timed."""
_BETTER = 1.03
"""Another number of rows must promise so many times the speed of the one that is offered."""


class BatchSize:
    """Number of sessions that share a step: rises at once, falls slowly."""

    DECAY = 0.1
    SLACK = 0.25

    def __init__(self) -> None:
        self._level = 1.0

    @property
    def size(self) -> int:
        """Sessions to reckon with. Counts that go up and down leave it where it is."""
        return math.ceil(self._level - self.SLACK)

    def count(self, num_sessions: int) -> None:
        """Take in the sessions of a step. One that only reads prompts says nothing."""
        if num_sessions < 1:
            return
        is_more = num_sessions > self._level
        self._level += (num_sessions - self._level) * (1.0 if is_more else self.DECAY)


class AcceptanceEstimate:
    """Tokens that r rows bring, `1 + kept * log2(r)`, with `kept` learnt from verdicts.

    Right for the second row of a chain, whose chance `kept` is, and near the measured growth of
    good trees, which bring about as much more for every doubling of their nodes.
    """

    START = 0.8
    """Before anything is known; what is never tried is never learnt."""
    WEIGHT = 0.02

    def __init__(self) -> None:
        self._kept = self.START
        self._tried = 1.0

    @property
    def kept(self) -> float:
        """Tokens that a doubling of the rows brings."""
        return min(self._kept / self._tried, 1.0)

    def record(self, *, num_nodes: int, num_accepted: int) -> None:
        """Take in a verdict; one on nothing proposed teaches nothing."""
        if num_nodes > 0:
            self._kept += self.WEIGHT * (num_accepted - self._kept)
            self._tried += self.WEIGHT * (math.log2(1 + num_nodes) - self._tried)

    def tokens(self, rows: int) -> float:
        """Final tokens of a round with so many rows."""
        return 1 + self.kept * math.log2(rows)


class DraftWait:
    """Time that a target waits for its sessions before a step: the cost of their drafts.

    Apart from what it waits for them in any case, and no longer than a step: a session that stays
    away longer is not drafting.
    """

    WEIGHT = 0.1

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._drafting_s = 0.0

    @property
    def draft_s(self) -> float:
        """Seconds that a round takes longer where sessions draft."""
        return max(self._drafting_s - self._plain_s, 0.0)

    def record(self, waited_s: float, *, step_s: float, is_drafting: bool) -> None:
        """Take in the time between two steps; `step_s` is what the second took."""
        waited_s = min(max(waited_s, 0.0), step_s)
        if is_drafting:
            self._drafting_s += self.WEIGHT * (waited_s - self._drafting_s)
        elif waited_s < step_s / 2:  # longer, and no session was there
            self._plain_s += self.WEIGHT * (waited_s - self._plain_s)


class Probes:
    """Schedule of attempts at what seems not to pay: all sessions at once, ever less often.

    Apart from each other they would try in every step, and each time cost all of them.
    """

    FIRST_PAUSE = 32
    LONGEST_PAUSE = 512

    def __init__(self) -> None:
        self._pause = self.FIRST_PAUSE
        self._left = self._pause

    def reset(self) -> None:
        """Begin anew, because it pays again."""
        self._pause = self._left = self.FIRST_PAUSE

    def is_due(self) -> bool:
        """Return whether to try in this step."""
        self._left -= 1
        if self._left > 0:
            return False
        self._pause = min(2 * self._pause, self.LONGEST_PAUSE)
        self._left = self._pause
        return True


class TokenBudget:
    """Decides on the rows of a session, and keeps to it until another number is clearly better."""

    def __init__(self, *, max_rows: int = 512) -> None:
        """A step has room for `max_rows` rows of all sessions."""
        self._max_rows = max_rows
        self._rows = 1
        self._probes = Probes()

    def decide(
        self,
        curve: CostCurve,
        acceptance: AcceptanceEstimate,
        *,
        sessions: int,
        keys: float,
        draft_s: float = 0.0,
    ) -> Offer:
        """Return the offer to each of `sessions` sessions, whose rows read `keys` keys each.

        Rows beyond the first make a round `draft_s` longer: they have to be drafted.
        """
        limit = max(min(self._max_rows // sessions, MAX_ROWS), 1)
        cost = _cost(curve, sessions, keys)
        if sessions == 1:
            most = min(limit, curve.tile or limit)
            self._rows = max(rows for rows in range(1, most + 1) if cost(rows) <= _ALONE)
            return self._offer(curve, cost, sessions, keys)
        draft = draft_s / _plain_s(curve, sessions, keys)
        speeds = {1: _PLAIN}
        for rows in range(2, limit + 1):
            speeds[rows] = acceptance.tokens(rows) / (cost(rows) + draft)
        best = max(speeds, key=lambda rows: speeds[rows])
        if speeds[best] > _BETTER * speeds.get(self._rows, 0.0):
            self._rows = best
        rows = self._rows
        if rows > 1:
            self._probes.reset()
        elif cost(2) < 2 and self._probes.is_due():  # two rows bring two tokens at most
            rows = 2
        return self._offer(curve, cost, sessions, keys, rows=rows)

    def _offer(
        self,
        curve: CostCurve,
        cost: Callable[[int], float],
        sessions: int,
        keys: float,
        *,
        rows: int | None = None,
    ) -> Offer:
        """Return the offer with its rows' costs, at each step of the staircase if there is one."""
        rows = self._rows if rows is None else rows
        step = (curve.tile or 0) // sessions
        steps = sorted({*ladder(step if step >= _SHORT_STEP else None, rows), rows})
        points = [(1, 1.0), *((at, cost(at)) for at in steps if 1 < at <= rows)]
        return Offer(rows, _plain_s(curve, sessions, keys), RowCosts.rising(points))


def _cost(curve: CostCurve, sessions: int, keys: float) -> Callable[[int], float]:
    """Return the cost of a round by the rows of each session, in plain rounds."""
    plain_s = _plain_s(curve, sessions, keys)
    return lambda rows: (
        curve.seconds(rows * sessions, sessions, round(keys * rows * sessions)) / plain_s
    )


def _plain_s(curve: CostCurve, sessions: int, keys: float) -> float:
    return curve.seconds(sessions, sessions, round(keys * sessions))
