"""docs/reference/metrics.md: the catalogue of metrics, by who exports them."""

from reference.tables import cell, code, table
from slipstream.telemetry.catalog import CATALOG, DRAFT, ROUTER, TARGET
from slipstream.telemetry.metric import Metric
from support.telemetry.prometheus_names import family

INTRODUCTION = """\
# Metrics

Every metric, from `slipstream/telemetry/catalog.py`. What is normal, what the attributes may say
and what to do is in the [runbook](../runbook.md); how to switch metrics on is in
[observability](../observability.md). A counter only grows; a gauge is looked at once a second; of a
histogram Prometheus has `_bucket`, `_count` and `_sum`.
"""
OWNERS = {"Router": ROUTER, "Target": TARGET, "Draft": DRAFT}


def page() -> str:
    parts = [INTRODUCTION]
    for title, role in OWNERS.items():
        rows = [row(metric) for metric in CATALOG if role in metric.roles]
        heads = ("Metric", "Prometheus", "Kind", "Unit", "Attributes", "Meaning", "Buckets")
        parts += [f"## {title}", "", table(heads, rows)]
    return "\n".join(parts)


def row(metric: Metric) -> tuple[str, ...]:
    attributes = ", ".join(map(code, metric.attributes)) or "-"
    buckets = ", ".join(f"{bound:g}" for bound in metric.buckets) or "-"
    names = code(metric.name), code(family(metric))
    return (*names, metric.kind.value, metric.unit, attributes, cell(metric.text), buckets)
