"""What a metric is, and the instruments made of metrics. Knows no exporter, and no service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeter, Observation

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]


class Kind(StrEnum):
    """How values of a metric add up."""

    COUNTER = "counter"
    """Only grows: `add` to it, or tell its `total`."""
    GAUGE = "gauge"
    """What it is at the moment: `put`."""
    HISTOGRAM = "histogram"
    """How values are distributed: `record`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `unit` is that of UCUM: s, By, 1, or what is counted in braces."""

    name: str
    kind: Kind
    unit: str
    text: str
    """What it says, in one sentence."""
    roles: tuple[str, ...]
    """Services that export it."""
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind is Kind.HISTOGRAM) != bool(self.buckets):
            raise ValueError(f"{self.name} is a {self.kind} with {len(self.buckets)} buckets")


@dataclass(slots=True)
class _Gauge:
    """What a gauge was last: however often it is looked at, it is there."""

    values: dict[tuple[tuple[str, Any], ...], float] = field(default_factory=dict)

    def read(self, _options: CallbackOptions) -> list[Observation]:
        """For whoever collects, on a thread of its own."""
        return [Observation(value, dict(key)) for key, value in self.values.copy().items()]


class Instruments:
    """Every metric of one process, made when it is first used. For any thread."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._made: dict[str, Any] = {}
        self._totals: dict[tuple[str, tuple[tuple[str, Any], ...]], float] = {}

    @property
    def are_exported(self) -> bool:
        """Whether anybody gets to see them: what costs time to know can be left out otherwise."""
        return not isinstance(self._meter, NoOpMeter)

    def add(self, metric: Metric, amount: float = 1, attributes: Attributes | None = None) -> None:
        """A counter grows."""
        self._of(metric, Kind.COUNTER).add(amount, attributes)

    def total(self, metric: Metric, total: float, attributes: Attributes | None = None) -> None:
        """A counter has come to this. From one thread only."""
        key = (metric.name, tuple(sorted((attributes or {}).items())))
        more = total - self._totals.get(key, 0)
        if more >= 0:
            self._totals[key] = total
            self.add(metric, more, attributes)

    def put(self, metric: Metric, value: float, attributes: Attributes | None = None) -> None:
        """A gauge is this now."""
        self._of(metric, Kind.GAUGE).values[tuple((attributes or {}).items())] = value

    def record(self, metric: Metric, value: float, attributes: Attributes | None = None) -> None:
        """One more value of a histogram."""
        self._of(metric, Kind.HISTOGRAM).record(value, attributes)

    def _of(self, metric: Metric, kind: Kind) -> Any:
        if metric.kind is not kind:
            raise ValueError(f"{metric.name} is a {metric.kind}, not a {kind}")
        made = self._made.get(metric.name)
        if made is None:
            made = self._made[metric.name] = self._make(metric)
        return made

    def _make(self, metric: Metric) -> Any:
        about = {"unit": metric.unit, "description": metric.text}
        match metric.kind:
            case Kind.COUNTER:
                return self._meter.create_counter(metric.name, **about)
            case Kind.GAUGE:
                gauge = _Gauge()
                self._meter.create_observable_gauge(metric.name, [gauge.read], **about)
                return gauge
            case Kind.HISTOGRAM:
                return self._meter.create_histogram(
                    metric.name, **about, explicit_bucket_boundaries_advisory=metric.buckets
                )


def no_instruments() -> Instruments:
    """Instruments that nobody reads."""
    return Instruments(NoOpMeter("slipstream"))
