"""What Prometheus gets to see of the metrics there are: asked of the exporter itself.

Names and labels follow rules of their own (units and kinds become part of a name); nobody writes
them down twice.
"""

from collections.abc import Mapping
from functools import cache

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from slipstream.telemetry.catalog import CATALOG
from slipstream.telemetry.metric import Instruments, Kind, Metric


@cache
def family(metric: Metric) -> str:
    """Its name, less what is put at the end for single series (`_bucket`, `_count`, `_sum`)."""
    (name,) = {_without_end(sample, metric) for sample in samples(metric)}
    return name


@cache
def samples(metric: Metric) -> Mapping[str, frozenset[str]]:
    """Every name of a series of a metric, with its labels."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(
        disable_target_info=True, scope_info_enabled=False, registry=registry
    )
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instruments = Instruments(provider.get_meter("slipstream"))
    tell = {
        Kind.COUNTER: instruments.add,
        Kind.GAUGE: instruments.put,
        Kind.HISTOGRAM: instruments.record,
    }[metric.kind]
    try:
        tell(metric, 1, dict.fromkeys(metric.attributes, "value"))
        return {
            sample.name: frozenset(sample.labels)
            for exported in registry.collect()
            for sample in exported.samples
        }
    finally:
        provider.shutdown()


@cache
def all_samples() -> Mapping[str, frozenset[str]]:
    """Those of all metrics."""
    return {name: labels for metric in CATALOG for name, labels in samples(metric).items()}


def label(attribute: str) -> str:
    """What an attribute is called there."""
    (metric, *_) = (at for at in CATALOG if attribute in at.attributes)
    (found,) = (
        name
        for name in next(iter(samples(metric).values()))
        if name == attribute or name == attribute.replace(".", "_")
    )
    return found


def _without_end(sample: str, metric: Metric) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        return sample
    return sample.rsplit("_", 1)[0]
