"""Metrics of the rounds of all requests. Counts are plain numbers, published once in a while."""

from collections import Counter

from slipstream.core.pace import Average
from slipstream.core.round import PLAIN, PREFILL, SPECULATIVE, Round
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments, Metric

MAX_POSITION = 16
"""The last position of a path that is counted."""
_WEIGHT = 0.02
"""Weight of one round: averages are over about the last fifty."""


def _average() -> Average:
    return Average(0.0, num_values=0, weight=_WEIGHT)


class SpeculationGain:
    """Gain of speculation: running averages over the rounds of all requests of a router."""

    def __init__(self) -> None:
        self._length = _average()
        self._speculative_s = _average()
        self._plain_s = _average()
        self._verify_s = _average()

    @property
    def length(self) -> float | None:
        """Final tokens of a speculative round; None before the first one."""
        return self._length.value or None

    @property
    def plain_s(self) -> float | None:
        """Duration of a plain round; None while it is not known."""
        return self._plain_s.value or None

    @property
    def break_even(self) -> float | None:
        """Length from which on speculative rounds bring more tokens per second than plain ones.

        None before the first one. While the duration of a plain round is not known, it counts as
        long as a verification, the least that it can be.
        """
        plain_s = self._plain_s.value or self._verify_s.value
        return self._speculative_s.value / plain_s or None if plain_s else None

    def record_speculative(self, *, num_final: int, seconds: float, verify_s: float) -> None:
        """Record a round in which something was drafted, and the part of its verification."""
        self._length.record(num_final)
        self._speculative_s.record(seconds)
        self._verify_s.record(verify_s)

    def record_plain(self, seconds: float) -> None:
        """Record the duration of a plain round, measured or as the target has it for its load."""
        self._plain_s.record(seconds)


class RoundMetrics:
    """Counts of the rounds of one router."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._counts: dict[Metric, Counter[str]] = {}
        self._gain = SpeculationGain()

    def record(self, at: Round) -> None:
        """Count a round that has its verdict."""
        self._learn(at)
        if not self._instruments.are_exported:
            return
        self._count(catalog.ROUNDS, at.kind)
        self._count(catalog.TOKENS_FINAL, amount=len(at.verdict.tokens))
        self._instruments.record(catalog.ROUND_DURATION, at.seconds, {"kind": at.kind})
        self._times(at)
        if at.kind == PREFILL:
            self._count(catalog.TOKENS_CACHED, amount=at.verdict.num_cached)
        elif at.kind == SPECULATIVE:
            self._speculative(at)
        if at.proposal.fallback is not None:
            self._count(catalog.FALLBACKS, at.proposal.fallback)

    @property
    def plain_s(self) -> float | None:
        """Duration of a plain round; None while it is not known."""
        return self._gain.plain_s

    def count(self, metric: Metric, amount: int) -> None:
        """Count for another metric, one without attributes."""
        self._count(metric, amount=amount)

    def publish(self) -> None:
        """Set the instruments to what was counted."""
        for metric, counts in self._counts.items():
            for value, count in counts.items():
                attributes = dict(zip(metric.attributes, [value], strict=False))
                self._instruments.total(metric, count, attributes)
        if self._gain.length is not None:
            self._instruments.put(catalog.SPECULATION_LENGTH, self._gain.length)
        if self._gain.break_even is not None:
            self._instruments.put(catalog.SPECULATION_BREAK_EVEN, self._gain.break_even)

    def _times(self, at: Round) -> None:
        if at.proposing is not None:
            self._instruments.record(catalog.DRAFT_WAIT, at.proposing_s)
        self._instruments.record(catalog.VERIFY_WAIT, at.verifying_s)

    def _speculative(self, at: Round) -> None:
        self._instruments.record(catalog.ROUND_ACCEPTED, at.num_accepted)
        self._count(catalog.TOKENS_DRAFTED, amount=at.num_nodes)
        self._count(catalog.TOKENS_ACCEPTED, amount=at.num_accepted)
        for source in at.proposal.sources:
            self._count(catalog.TOKENS_COPIED, source.value)
        for source in at.accepted_sources:
            self._count(catalog.TOKENS_COPIED_ACCEPTED, source.value)
        self._count(catalog.STOPS, at.proposal.stopped_by)
        for metric, reached in (
            (catalog.POSITION_DRAFTED, at.depth),
            (catalog.POSITION_ACCEPTED, at.num_accepted),
        ):
            for position in range(1, min(reached, MAX_POSITION) + 1):
                self._count(metric, str(position))

    def _learn(self, at: Round) -> None:
        verdict = at.verdict
        if at.kind == PLAIN:
            self._gain.record_plain(at.verifying_s)  # and no waiting for a draft that is lost
        elif at.kind == SPECULATIVE and verdict.finish_reason is None:
            # A last one is cut short for reasons of its own.
            verify_s = at.verifying_s
            self._gain.record_speculative(
                num_final=len(verdict.tokens), seconds=at.seconds, verify_s=verify_s
            )
            offer, timing = verdict.offer, verdict.timing
            if offer is not None and offer.round_s:
                # The target's own estimate, and the time on the way as it was.
                way_s = 0.0 if timing is None else max(verify_s - timing.engine_s, 0.0)
                self._gain.record_plain(offer.round_s + way_s)

    def _count(self, metric: Metric, value: str = "", *, amount: int = 1) -> None:
        self._counts.setdefault(metric, Counter())[value] += amount
