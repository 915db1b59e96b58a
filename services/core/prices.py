"""What a draft step and a row to verify cost now, in plain rounds. Pure arithmetic.

Alone with its engines a request goes by what was calibrated; under load by what it is offered, and
by how long it waits for its drafts.
"""

from slipstream.core.offer import Offer


class Prices:
    """Of one request, from verdict to verdict."""

    WEIGHT = 0.2
    LARGEST_RISE = 4.0
    """A wait that is so many times the usual one, or more, counts as so many."""

    def __init__(self, *, step_cost: float, row_cost: float) -> None:
        self._step_cost = self._step = step_cost
        self._row_cost = row_cost
        self._offer: Offer | None = None
        self._has_drafted = False

    @property
    def row(self) -> float:
        """Of one more row."""
        offered = self._offer.row_cost if self._offer else None
        return self._row_cost if offered is None else offered

    @property
    def step(self) -> float:
        """Of one draft step."""
        return self._step if self.is_loaded else self._step_cost

    @property
    def is_loaded(self) -> bool:
        """Whether the engines have others to serve."""
        return self._offer is not None and self._offer.row_cost is not None

    def take(self, offer: Offer | None) -> None:
        """Go by another offer from now on."""
        self._offer = offer

    def drafted(self, depth: int, waited_s: float | None) -> None:
        """A proposal of so many steps took so long. The first one of a request also reads it."""
        round_s = self._offer.round_s if self._offer else None
        if self._has_drafted and waited_s is not None and round_s:
            cost = waited_s / round_s / depth
            limit = self.LARGEST_RISE * max(self._step, 0.01)
            self._step += self.WEIGHT * (min(cost, limit) - self._step)
        self._has_drafted = True
