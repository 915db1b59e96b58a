"""What a target offers its sessions, learnt from its own steps. Knows neither clock nor model."""

import logging
import math
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.cost_curve import CostCurve
from slipstream.core.load import Allowance, Crowd, Waits, Yield
from slipstream.core.offer import Offer

_LOG = logging.getLogger("slipstream.target")

_KEYS_WEIGHT = 0.1
_REFRESH = 16
"""Steps after which an offer is decided anew; a crowd of another size has it at once."""
_SCARCE = 2


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A step of so many rows of so many sessions, which read `keys` keys: summed over rows.

    It took `seconds`, and began `waited_s` after the one before had ended; `is_drafted` says that
    sessions had something drafted meanwhile.
    """

    rows: int
    sessions: int
    keys: int
    seconds: float
    waited_s: float = 0.0
    is_drafted: bool = False


class Meter(Protocol):
    """Kept by an engine, step by step: `offer`, then `verified` for each verdict, then `record`."""

    def offer(self, num_verdicts: int) -> Offer | None:
        """Return what each session gets with its verdict, of which this step has so many."""
        ...

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """A verdict on so many proposed nodes."""
        ...

    def record(self, step: StepTaken) -> None:
        """What the step was."""
        ...


class HarmlessMeter:
    """A meter whose errors are logged, once, and fail no step: all that it gives are hints."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._has_failed = False

    def offer(self, num_verdicts: int) -> Offer | None:
        """See `Meter`; None where there is no offer to be had."""
        try:
            return self._meter.offer(num_verdicts)
        except Exception:
            self._report()
            return None

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """See `Meter`."""
        try:
            self._meter.verified(num_nodes=num_nodes, num_accepted=num_accepted)
        except Exception:
            self._report()

    def record(self, step: StepTaken) -> None:
        """See `Meter`."""
        try:
            self._meter.record(step)
        except Exception:
            self._report()

    def _report(self) -> None:
        if not self._has_failed:
            _LOG.exception("the costs of steps can't be told: rounds go on without them")
        self._has_failed = True


class FixedMeter:
    """Offers the same rows to everybody and learns nothing."""

    def __init__(self, rows: int) -> None:
        self._offer = Offer(rows)

    def offer(self, num_verdicts: int) -> Offer:
        """See `Meter`."""
        return self._offer

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """See `Meter`."""

    def record(self, step: StepTaken) -> None:
        """See `Meter`."""


class LoadMeter:
    """Offers what pays now, by the cost curve, the sessions that share steps and what they keep."""

    def __init__(self, curve: CostCurve, *, max_rows: int = 512) -> None:
        """`max_rows` is what a step has room for."""
        self.curve = curve
        self._crowd = Crowd()
        self._yields = Yield()
        self._allowance = Allowance(max_rows=max_rows)
        self._waits = Waits()
        self._keys_per_row = 0.0
        self._offer: Offer | None = None
        self._size = 0
        self._age = 0

    def offer(self, num_verdicts: int) -> Offer:
        """See `Meter`."""
        self._crowd.count(num_verdicts)
        self._age += 1
        size = self._crowd.size
        # Where hardly anything is offered, every step may be one to try more in.
        is_scarce = self._offer is not None and self._offer.rows <= _SCARCE
        if self._offer is None or is_scarce or size != self._size or self._age >= _REFRESH:
            self._size, self._age = size, 0
            self._offer = self._allowance.decide(
                self.curve,
                self._yields,
                sessions=size,
                keys=self._keys_per_row,
                draft_s=self._waits.draft_s,
            )
        return self._offer

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """See `Meter`."""
        self._yields.record(num_nodes=num_nodes, num_accepted=num_accepted)

    def record(self, step: StepTaken) -> None:
        """See `Meter`. A step whose times are none teaches nothing."""
        if not (0 <= step.seconds < math.inf and math.isfinite(step.waited_s)):
            return
        self._waits.record(step.waited_s, step_s=step.seconds, is_drafting=step.is_drafted)
        self.curve.record(step.rows, step.sessions, step.keys, seconds=step.seconds)
        self._keys_per_row += _KEYS_WEIGHT * (step.keys / step.rows - self._keys_per_row)
