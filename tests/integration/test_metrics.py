"""Metrics of the three services as processes: pages for Prometheus, and what a collector gets.

Requests are asked once, one of which loses its draft; the laws are about what is told then.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.client import SamplingParams
from slipstream.telemetry import catalog
from slipstream.telemetry.catalog import CATALOG, DRAFT, ROUTER, TARGET
from slipstream.telemetry.metric import MetricKind
from support.services import fleet
from support.state.redis_server import running_redis
from support.telemetry.otlp_collector import collector
from support.telemetry.prometheus_names import samples
from support.telemetry.promql import promtool
from support.telemetry.told_services import FORCED, asking, services

ROLES = (ROUTER, TARGET, DRAFT)
PROMPT = "the quick brown fox"
SAMPLED = SamplingParams(temperature=0.8, seed=3)


@dataclass
class Told:
    """Statistics of requests, as callers have them, and what the services say."""

    stats: list = field(default_factory=list)
    first_pages: dict[str, str] = field(default_factory=dict)
    """Before the first request."""
    pages: dict[str, str] = field(default_factory=dict)
    exported: dict[str, set[str]] = field(default_factory=dict)
    """Names that the collector has."""

    def total(self, name):
        return sum(getattr(at.speculation, name) for at in self.stats)

    def counted(self, name):
        return sum((Counter(getattr(at.speculation, name)) for at in self.stats), Counter())

    @property
    def num_rounds(self):
        return len(self.stats) + self.total("num_spec_steps") + self.total("num_plain_steps")


def read(process):
    url = process.until_logged("metrics at").rpartition(" ")[2]
    with urlopen(url, timeout=20) as page:
        return page.read().decode()


def ask_all(told, running, router, to):
    """Alone and in a session, greedy and sampled; the draft is lost in the last one."""
    with asking(router) as client:
        session = client.session()
        for ask in (client.generate, session.generate, session.generate):
            for options in ({}, {"sampling": SAMPLED}):
                result = ask(PROMPT, max_tokens=30, speculation=FORCED, **options)
                told.stats.append(result.stats)
        await_all(told, to)
        told.pages[DRAFT] = read(running.draft)
        copying = replace(FORCED, lookup=True)
        told.stats.append(client.generate(PROMPT, max_tokens=60, speculation=copying).stats)
        chunks = client.stream(PROMPT, max_tokens=300, speculation=FORCED)
        told.stats.append(running.lose_draft(chunks)[-1].stats)
        await_all(told, to)


def await_all(told, to):
    """Until the router has told of all requests, and the engines of all rounds."""
    rounds, lost = told.num_rounds, sum(told.counted("fallbacks").values())
    expected = {
        catalog.TOKENS_FINAL: sum(at.num_output_tokens for at in told.stats),
        catalog.ROUNDS: rounds,
        catalog.STOPS: told.total("num_spec_steps"),
        catalog.POSITION_ACCEPTED: told.total("num_accepted_draft_tokens"),
        catalog.FALLBACKS: lost,
        catalog.TOKENS_PROMPT: sum(at.num_prompt_tokens for at in told.stats),
        catalog.TOKENS_CACHED: sum(at.num_cached_tokens for at in told.stats),
        catalog.TOKENS_DRAFTED: told.total("num_draft_tokens"),
        catalog.TOKENS_ACCEPTED: told.total("num_accepted_draft_tokens"),
        catalog.TOKENS_UNKEPT: sum(at.continuity.num_unkept_tokens for at in told.stats),
        catalog.TARGET_LOSSES: 0,
        catalog.REQUEST_DURATION: len(told.stats),
    }

    def is_told():
        router, target, draft = (to.metrics(f"slipstream-{role}") for role in ROLES)
        return (
            all(count(router, metric) == total for metric, total in expected.items())
            and count(target, catalog.TARGET_QUEUE) == rounds
            and 0 < count(router, catalog.ROUNDS_GRANTED) < rounds
            and (lost or count(draft, catalog.DRAFT_QUEUE) == count(router, catalog.DRAFT_WAIT))
        )

    assert to.until(is_told)


def count(metrics, metric):
    """What a counter has come to, and how much a histogram has counted, whatever the attributes."""
    if metric.name not in metrics:
        return 0
    held = metrics[metric.name]
    if metric.kind is MetricKind.HISTOGRAM:
        return sum(point.count for point in held.histogram.data_points)
    return sum(point.as_double or point.as_int for point in held.sum.data_points)


@pytest.fixture(scope="module")
def told(folder):
    found = Told()
    with collector() as to, running_redis() as store:
        with services(to, folder, str(fleet.glide_of(folder))) as running:
            # A busy machine is no reason to go on without the store.
            router = running.router("--store-url", store, "--store-timeout-s", "60")
            found.first_pages[ROUTER] = read(router)
            ask_all(found, running, router, to)
            found.pages |= {ROUTER: read(router), TARGET: read(running.target)}
            assert set(running.stop()) == {0}
        found.exported = {role: set(to.metrics(f"slipstream-{role}")) for role in ROLES}
    return found


def of_role(role):
    return [metric for metric in CATALOG if role in metric.roles]


def values(page):
    """Every value of a page, by name and labels; a histogram's buckets are left out."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for exported in text_string_to_metric_families(page)
        for sample in exported.samples
        if not sample.name.endswith("_bucket")
    }


def value(page, metric):
    """Return a counter's value without attributes; None where there is none."""
    (name,) = samples(metric)
    return values(page).get((name, frozenset()))


@pytest.mark.parametrize("role", ROLES)
def test_page_and_collector_have_the_metrics_of_a_service_and_no_others(told, role):
    found = values(told.pages[role])
    names = {name for name, _ in found}
    known = {name: labels for metric in of_role(role) for name, labels in samples(metric).items()}
    assert names - known.keys() == {"target_info"}
    for name, labels in found:
        assert {label for label, _ in labels} <= known.get(name, {label for label, _ in labels})
    assert [at.name for at in of_role(role) if not names & set(samples(at))] == []
    assert told.exported[role] == {metric.name for metric in of_role(role)}


@pytest.mark.parametrize("role", ROLES)
def test_promtool_has_nothing_to_say_of_a_page(told, role):
    promtool("check", "metrics", text=told.pages[role])


def test_counters_without_attributes_are_there_before_they_count(told):
    for metric in of_role(ROUTER):
        if metric.kind is MetricKind.COUNTER and not metric.attributes:
            assert value(told.first_pages[ROUTER], metric) == 0
