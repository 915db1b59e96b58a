"""Telemetry of a process: metrics and their instruments, sampled once a second, and a tracer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeter, Observation
from opentelemetry.trace import NoOpTracer, Tracer

from slipstream.core.inline import beside

SAMPLE_S = 1.0
_NO_METER = NoOpMeter("slipstream")
_LOG = logging.getLogger("slipstream.telemetry")

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]


class MetricKind(StrEnum):
    """Kind of a metric: how its values add up."""

    COUNTER = "counter"
    """Only grows: `add` to it, or set its `total`."""
    GAUGE = "gauge"
    """A value at the moment: `put` it."""
    HISTOGRAM = "histogram"
    """A distribution of values: `record` each."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `unit` is that of UCUM: s, By, 1, or what is counted in braces."""

    name: str
    kind: MetricKind
    unit: str
    text: str
    roles: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(slots=True)
class _Gauge:
    values: dict[tuple[tuple[str, Any], ...], float] = field(default_factory=dict)

    def read(self, _options: CallbackOptions) -> list[Observation]:
        """Return the values; called on an exporter's thread."""
        return [Observation(value, dict(key)) for key, value in self.values.copy().items()]


class Instruments:
    """Every metric of one process, made when it is first used. For any thread; without a meter
    nothing reads them."""

    def __init__(self, meter: Meter = _NO_METER) -> None:
        self._meter = meter
        self._made: dict[str, Any] = {}
        self._totals: dict[tuple[str, tuple[tuple[str, Any], ...]], float] = {}

    @property
    def are_exported(self) -> bool:
        """Return whether anything reads them; if not, costly measuring can be left out."""
        return not isinstance(self._meter, NoOpMeter)

    def add(self, metric: Metric, amount: float = 1, attributes: Attributes | None = None) -> None:
        self._of(metric).add(amount, attributes)

    def total(self, metric: Metric, total: float, attributes: Attributes | None = None) -> None:
        """Set the total of a counter, which never goes down. From one thread only."""
        key = (metric.name, tuple(sorted((attributes or {}).items())))
        more = total - self._totals.get(key, 0)
        if more >= 0:
            self._totals[key] = total
            self.add(metric, more, attributes)

    def put(self, metric: Metric, value: float, attributes: Attributes | None = None) -> None:
        """Set the value of a gauge."""
        self._of(metric).values[tuple((attributes or {}).items())] = value

    def record(self, metric: Metric, value: float, attributes: Attributes | None = None) -> None:
        """Record one more value of a histogram."""
        self._of(metric).record(value, attributes)

    def _of(self, metric: Metric) -> Any:
        if (made := self._made.get(metric.name)) is not None:
            return made
        about: dict[str, Any] = {"unit": metric.unit, "description": metric.text}
        if metric.kind is MetricKind.COUNTER:
            made = self._meter.create_counter(metric.name, **about)
        elif metric.kind is MetricKind.GAUGE:
            made = _Gauge()
            self._meter.create_observable_gauge(metric.name, [made.read], **about)
        else:
            about["explicit_bucket_boundaries_advisory"] = metric.buckets
            made = self._meter.create_histogram(metric.name, **about)
        self._made[metric.name] = made
        return made


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry of one process. By default nothing is exported."""

    tracer: Tracer = field(default_factory=NoOpTracer)
    instruments: Instruments = field(default_factory=Instruments)
    trace_rounds: int = 8
    """Rounds of a request that have spans: its first."""


@asynccontextmanager
async def sampled(
    instruments: Instruments, sample: Callable[[Instruments], None]
) -> AsyncIterator[None]:
    """Have `sample` set gauges and totals, on this event loop: now, every second and at the end."""
    if not instruments.are_exported:
        yield
        return

    def take() -> None:
        try:
            sample(instruments)
        except Exception:  # a service must not fail because of its metrics
            _LOG.exception("metrics could not be sampled")

    async def keep_taking() -> None:
        while True:
            take()
            await asyncio.sleep(SAMPLE_S)

    try:
        async with beside(keep_taking()):
            yield
    finally:
        take()
