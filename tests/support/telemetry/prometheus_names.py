"""Names of our metrics in Prometheus, as the exporter writes them.
Names and labels follow rules of their own (units and kinds become part of a name); they are
written down once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from slipstream.telemetry.catalog import CATALOG
from slipstream.telemetry.metric import Instruments, Metric, MetricKind


@cache
def family(metric: Metric) -> str:
    """Return its name without the endings of single series (`_bucket`, `_count`, `_sum`)."""
    has_end = metric.kind is MetricKind.HISTOGRAM
    (name,) = {sample.rsplit("_", 1)[0] if has_end else sample for sample in samples(metric)}
    return name


@cache
def samples(metric: Metric) -> Mapping[str, frozenset[str]]:
    """Every name of a series of a metric, with its labels."""
    with exported(metric) as registry:
        return {
            sample.name: frozenset(sample.labels)
            for known in registry.collect()
            for sample in known.samples
        }


@contextmanager
def exported(*metrics: Metric) -> Iterator[CollectorRegistry]:
    """The exporter's registry, with a value of each metric."""
    registry = CollectorRegistry()
    bare = {"disable_target_info": True, "scope_info_enabled": False}
    reader = PrometheusMetricReader(registry=registry, **bare)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instruments = Instruments(provider.get_meter("slipstream"))
    tell = {
        MetricKind.COUNTER: instruments.add,
        MetricKind.GAUGE: instruments.put,
        MetricKind.HISTOGRAM: instruments.record,
    }
    try:
        for metric in metrics:
            tell[metric.kind](metric, 1, dict.fromkeys(metric.attributes, "value"))
        yield registry
    finally:
        provider.shutdown()


@cache
def all_samples() -> Mapping[str, frozenset[str]]:
    return {name: labels for metric in CATALOG for name, labels in samples(metric).items()}


def label(attribute: str) -> str:
    (metric, *_) = (at for at in CATALOG if attribute in at.attributes)
    (found,) = (
        name
        for name in next(iter(samples(metric).values()))
        if name == attribute or name == attribute.replace(".", "_")
    )
    return found
