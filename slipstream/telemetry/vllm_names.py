"""Series under vLLM's names, for dashboards, scalers and load balancers made for vLLM.

What vLLM has and a service has no figure for is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Metric

PREFIX = "vllm:"
_MODEL, _ERROR = "gen_ai_request_model", "error_type"


@dataclass(frozen=True, slots=True)
class Alias:
    """A name of vLLM's for the series of a metric whose labels have these values.

    `position` becomes one that counts from 0.
    """

    name: str
    metric: Metric
    only: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


ALIASES = (
    Alias("num_requests_running", catalog.REQUESTS_RUNNING),
    Alias("num_requests_running", catalog.SESSIONS, {"state": "active"}),
    Alias("num_requests_waiting", catalog.WAITING),
    Alias("time_to_first_token_seconds", catalog.FIRST_TOKEN),
    Alias("request_time_per_output_token_seconds", catalog.PER_TOKEN),
    Alias("e2e_request_latency_seconds", catalog.REQUEST_DURATION),
    Alias("prompt_tokens", catalog.TOKENS_PROMPT),
    Alias("generation_tokens", catalog.TOKENS_FINAL),
    Alias("prefix_cache_queries", catalog.TOKENS_PROMPT),
    Alias("prefix_cache_hits", catalog.TOKENS_CACHED),
    Alias("spec_decode_num_drafts", catalog.ROUNDS, {"kind": "speculative"}),
    Alias("spec_decode_num_draft_tokens", catalog.TOKENS_DRAFTED),
    Alias("spec_decode_num_accepted_tokens", catalog.TOKENS_ACCEPTED),
    Alias("spec_decode_num_accepted_tokens_per_pos", catalog.POSITION_ACCEPTED),
)
KV_USAGE = "kv_cache_usage_perc"
"""Share of a target's room for keys and values that is in use, 0 to 1."""


class VllmNames(Collector):
    """Families of a registry, and behind them those under vLLM's names."""

    def __init__(self, collect: Callable[[], Iterable[Family]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Family]:
        """See `prometheus_client`."""
        families = list(self._collect())
        yield from families
        known = {family.name: family for family in families}
        for alias in ALIASES:
            family = _family(known, alias.metric)
            if family is not None:
                yield _renamed(family, alias)
        used, room = (_family(known, at) for at in (catalog.KV_USED, catalog.KV_CAPACITY))
        if used and room and used.samples and room.samples and room.samples[0].value:
            usage = Family(PREFIX + KV_USAGE, used.documentation, "gauge")
            usage.add_sample(usage.name, {}, used.samples[0].value / room.samples[0].value)
            yield usage


def _family(known: Mapping[str, Family], metric: Metric) -> Family | None:
    name = metric.name.replace(".", "_")
    return known.get(name) or known.get(f"{name}_seconds") or known.get(f"{name}_bytes")


def _renamed(family: Family, alias: Alias) -> Family:
    renamed = Family(PREFIX + alias.name, family.documentation, family.type)
    for sample in family.samples:
        labels = dict(sample.labels)
        if labels.get(_ERROR) or alias.only.items() - labels.items():
            continue
        name = renamed.name + sample.name.removeprefix(family.name)
        renamed.add_sample(name, _labels(labels), sample.value)
    return renamed


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that vLLM has too."""
    kept = {name: labels[name] for name in ("le",) if name in labels}
    if _MODEL in labels:
        kept["model_name"] = labels[_MODEL]
    if "position" in labels:
        kept["position"] = str(int(labels["position"]) - 1)
    return kept
