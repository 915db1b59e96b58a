"""Metrics of the rounds of all requests. Counts are plain numbers, published once in a while."""

from collections import Counter

from slipstream.core.round import PLAIN, PREFILL, SPECULATIVE, Round
from slipstream.core.row_costs import Average
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments, Metric

MAX_POSITION = 16
"""The last position of a path that is counted."""
_WEIGHT = 0.02
"""Weight of one round: averages are over about the last fifty."""


class RoundMetrics:
    """Counts of the rounds of one router."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._counts: dict[Metric, Counter[str]] = {}
        self._length, self._speculative_s, self._plain_s, self._verify_s = (
            Average(0.0, num_values=0, weight=_WEIGHT) for _ in range(4)
        )
        """Averages: tokens and seconds of a speculative round, seconds of a plain one and, the
        least that it can take, of a verification."""

    def record(self, round_: Round) -> None:
        self._learn(round_)
        if not self._instruments.are_exported:
            return
        self.count(catalog.ROUNDS, round_.kind)
        self.count(catalog.ROUNDS_GRANTED, amount=round_.verdict.proposal is not None)
        self.count(catalog.TOKENS_FINAL, amount=len(round_.verdict.tokens))
        self._instruments.record(catalog.ROUND_DURATION, round_.seconds, {"kind": round_.kind})
        if round_.proposing is not None:
            self._instruments.record(catalog.DRAFT_WAIT, round_.proposing_s)
        self._instruments.record(catalog.VERIFY_WAIT, round_.verifying_s)
        if round_.kind == PREFILL:
            self.count(catalog.TOKENS_CACHED, amount=round_.verdict.num_cached)
        elif round_.kind == SPECULATIVE:
            self._speculative(round_)
        if round_.proposal.fallback is not None:
            self.count(catalog.FALLBACKS, round_.proposal.fallback)

    def count(self, metric: Metric, value: str = "", *, amount: int = 1) -> None:
        """Count for a metric; `value` is that of its attribute, if it has one."""
        self._counts.setdefault(metric, Counter())[value] += amount

    @property
    def plain_s(self) -> float | None:
        """Duration of a plain round, measured or as targets have it; None while it is unknown."""
        return self._plain_s.value or None

    def publish(self) -> None:
        """Set the instruments to what was counted."""
        for metric, counts in self._counts.items():
            for value, count in counts.items():
                attributes = dict(zip(metric.attributes, [value], strict=False))
                self._instruments.total(metric, count, attributes)
        if self._length.value:
            self._instruments.put(catalog.SPECULATION_LENGTH, self._length.value)
        plain_s = self._plain_s.value or self._verify_s.value
        if plain_s and self._speculative_s.value:
            break_even = self._speculative_s.value / plain_s
            self._instruments.put(catalog.SPECULATION_BREAK_EVEN, break_even)

    def _speculative(self, round_: Round) -> None:
        self._instruments.record(catalog.ROUND_ACCEPTED, round_.num_accepted)
        self.count(catalog.TOKENS_DRAFTED, amount=round_.num_nodes)
        self.count(catalog.TOKENS_ACCEPTED, amount=round_.num_accepted)
        for source in round_.proposal.sources:
            self.count(catalog.TOKENS_COPIED, source.value)
        for source in round_.accepted_sources:
            self.count(catalog.TOKENS_COPIED_ACCEPTED, source.value)
        self.count(catalog.STOPS, round_.proposal.stopped_by)
        for metric, reached in (
            (catalog.POSITION_DRAFTED, round_.depth),
            (catalog.POSITION_ACCEPTED, round_.num_accepted),
        ):
            for position in range(1, min(reached, MAX_POSITION) + 1):
                self.count(metric, str(position))

    def _learn(self, round_: Round) -> None:
        verdict = round_.verdict
        if round_.kind == PLAIN:
            self._plain_s.record(round_.verifying_s)  # and no waiting for a draft that is lost
        elif round_.kind == SPECULATIVE and verdict.finish_reason is None:
            # A last one is cut short for reasons of its own.
            self._length.record(len(verdict.tokens))
            self._speculative_s.record(round_.seconds)
            self._verify_s.record(round_.verifying_s)
            if verdict.offer is not None and verdict.offer.round_s:
                # The target's own estimate, and the time on the way as it was.
                engine_s = round_.verifying_s if verdict.timing is None else verdict.timing.engine_s
                way_s = max(round_.verifying_s - engine_s, 0.0)
                self._plain_s.record(verdict.offer.round_s + way_s)
