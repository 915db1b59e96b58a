"""Offers for sessions' next rounds, learnt from the target's own steps."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.policy.cost_curve import CostCurve
from slipstream.core.policy.load import AcceptanceEstimate, BatchSize, DraftWait, TokenBudget
from slipstream.core.row_costs import Offer

_LOG = logging.getLogger("slipstream.target")

_KEYS_WEIGHT = 0.1
_REFRESH = 16
"""Steps after which an offer is decided anew; another batch size has a new one at once."""
_SCARCE = 2


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step of `num_tokens` batched tokens of so many sessions, which read `num_keys` keys: summed
    over tokens.

    It took `seconds`, and began `waited_s` after the one before had ended; `is_drafted` says that
    sessions had something drafted meanwhile.
    """

    num_tokens: int
    num_sessions: int
    num_keys: int
    seconds: float
    waited_s: float = 0.0
    is_drafted: bool = False


class Meter(Protocol):
    """Kept by an engine, step by step: `offer`, then `verified` for each verdict, then `record`."""

    def offer(self, num_verdicts: int) -> Offer | None:
        """Return what each session gets with its verdict, of which this step has so many."""
        ...

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """Count a verdict on so many proposed nodes."""
        ...

    def record(self, step: StepCost) -> None:
        """Learn from a step."""
        ...


class HarmlessMeter:
    """A meter whose errors are logged, once, and fail no step: all that it gives are hints."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._has_failed = False

    def offer(self, num_verdicts: int) -> Offer | None:
        """See `Meter`; None where there is no offer to be had."""
        offer: Offer | None = None
        with self._logged():
            offer = self._meter.offer(num_verdicts)
        return offer

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """See `Meter`."""
        with self._logged():
            self._meter.verified(num_nodes=num_nodes, num_accepted=num_accepted)

    def record(self, step: StepCost) -> None:
        """See `Meter`."""
        with self._logged():
            self._meter.record(step)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._has_failed:
                _LOG.exception("the costs of steps are unknown: rounds go on without them")
            self._has_failed = True


class FixedMeter:
    """Offers the same token budget to all sessions and learns nothing."""

    def __init__(self, num_tokens: int) -> None:
        self._offer = Offer(num_tokens)

    def offer(self, num_verdicts: int) -> Offer:
        """See `Meter`."""
        return self._offer

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """See `Meter`."""

    def record(self, step: StepCost) -> None:
        """See `Meter`."""


class LoadMeter:
    """Offers what pays now, by the cost curve, the batch size and how much is accepted."""

    def __init__(self, curve: CostCurve, *, max_tokens: int = 512) -> None:
        """`max_tokens` is what a step has room for."""
        self.curve = curve
        self._batch_size = BatchSize()
        self._acceptance = AcceptanceEstimate()
        self._budget = TokenBudget(max_rows=max_tokens)
        self._draft_wait = DraftWait()
        self._keys_per_token = 0.0
        self._offer: Offer | None = None
        self._size = 0
        self._age = 0

    def offer(self, num_verdicts: int) -> Offer:
        """See `Meter`."""
        self._batch_size.count(num_verdicts)
        self._age += 1
        size = self._batch_size.size
        # Where hardly anything is offered, every step may be one to try more in.
        is_scarce = self._offer is not None and self._offer.rows <= _SCARCE
        if self._offer is None or is_scarce or size != self._size or self._age >= _REFRESH:
            self._size, self._age = size, 0
            self._offer = self._budget.decide(
                self.curve,
                self._acceptance,
                sessions=size,
                keys=self._keys_per_token,
                draft_s=self._draft_wait.draft_s,
            )
        return self._offer

    def verified(self, *, num_nodes: int, num_accepted: int) -> None:
        """See `Meter`."""
        self._acceptance.record(num_nodes=num_nodes, num_accepted=num_accepted)

    def record(self, step: StepCost) -> None:
        """See `Meter`. A step whose times are none teaches nothing."""
        if not (0 <= step.seconds < math.inf and math.isfinite(step.waited_s)):
            return
        self._draft_wait.record(step.waited_s, step_s=step.seconds, is_drafting=step.is_drafted)
        num_tokens, num_keys = step.num_tokens, step.num_keys
        self.curve.record(num_tokens, step.num_sessions, num_keys, seconds=step.seconds)
        self._keys_per_token += _KEYS_WEIGHT * (num_keys / num_tokens - self._keys_per_token)
