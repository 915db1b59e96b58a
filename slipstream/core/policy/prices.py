"""Prices of a draft step and of a token to verify, in plain rounds. Pure arithmetic.

Both are what was measured where the request runs, unless a profile that the user named pins them.
"""

import math

from slipstream.core.row_costs import Offer, RowCosts

DEFAULT_STEP_COST = 0.05
"""Cost of a draft step, for drafts that have not been timed."""
DEFAULT_ROW_COST = 0.01
"""Cost of a row, for targets that do not report their costs."""


class Prices:
    """The costs of one request's rounds, from verdict to verdict."""

    WEIGHT = 0.2
    LARGEST_RISE = 4.0
    """A wait that is so many times the usual one, or more, counts as so many."""

    def __init__(
        self,
        *,
        step_cost: float | None = None,
        row_cost: float | None = None,
        step_s: float | None = None,
    ) -> None:
        """`step_cost` and `row_cost`, in plain rounds, hold whatever is measured; `step_s` is what
        a draft step took at the start, in seconds."""
        self._step_cost = step_cost
        self._pinned = None if row_cost is None else RowCosts.straight(row_cost)
        self._costs = self._pinned or RowCosts.straight(DEFAULT_ROW_COST)
        self._step_s = step_s
        self.round_s: float | None = None
        """Seconds of a plain round, if known."""
        self._has_drafted = False

    @property
    def step(self) -> float:
        """Plain rounds that a draft step takes."""
        if self._step_cost is not None:
            return self._step_cost
        if self._step_s is None or not self.round_s:
            return DEFAULT_STEP_COST
        return self._step_s / self.round_s

    def round(self, num_nodes: int) -> float:
        """Return the plain rounds that verifying so many nodes takes."""
        return self._costs.of(1 + num_nodes)

    def nodes(self, count: int) -> tuple[float, ...]:
        """Return what the first, second … of `count` nodes adds to that."""
        return self._costs.nodes(count)

    def take(self, offer: Offer | None) -> None:
        """Go by another offer from now on."""
        if offer is not None:
            self.round_s = offer.round_s or self.round_s
            self._costs = self._pinned or offer.costs or self._costs

    def waited(self, seconds: float) -> float:
        """Return the plain rounds that a wait takes."""
        return seconds / self.round_s if self.round_s and 0 <= seconds < math.inf else 0.0

    def drafted(self, num_steps: int, waited_s: float | None) -> float:
        """Learn that a proposal of so many steps took so long; return its cost in plain rounds.

        A request's first proposal reads the prompt as well: it is counted as the others are. What
        is no time teaches nothing.
        """
        is_first, self._has_drafted = not self._has_drafted, True
        if waited_s is not None and not 0 <= waited_s < math.inf:
            waited_s = None
        if is_first or waited_s is None or not self.round_s or self._step_cost is not None:
            return num_steps * self.step
        step_s = waited_s / max(num_steps, 1)
        usual_s = step_s if self._step_s is None else self._step_s
        step_s = min(step_s, self.LARGEST_RISE * max(usual_s, 0.01 * self.round_s))
        self._step_s = usual_s + self.WEIGHT * (step_s - usual_s)
        return min(waited_s, step_s * max(num_steps, 1)) / self.round_s
