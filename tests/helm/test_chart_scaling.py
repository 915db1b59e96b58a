"""Each role is scaled by one controller at most, by metrics that its services export."""

import re
from itertools import product
from math import ceil

import pytest
import yaml

from slipstream.telemetry.catalog import CATALOG
from support.deployment.charts import (
    CASES,
    CHART,
    COMPONENT,
    MODEL,
    ROOT,
    named,
    of_kind,
    pods,
    rendered,
    service_pods,
    title,
    with_values,
)
from support.deployment.kube_policies import matches
from support.telemetry.prometheus_names import all_samples, samples
from support.telemetry.promql import SCRAPED, check_expressions, known_labels, spoken

ROLES_OF = {sample: set(metric.roles) for metric in CATALOG for sample in samples(metric)}
"""Who exports a series."""
BY_POD = SCRAPED | {"pod", "container", "service", "endpoint"}
RULES = yaml.safe_load((CHART / "alerts/slipstream.yaml").read_text())
RECORDED = {
    rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule
}
PAGE = (ROOT / "docs/kubernetes.md").read_text()
ADAPTER = yaml.safe_load(re.search(r"^```yml\n(rules:.*?)^```$", PAGE, re.M | re.S)[1])["rules"]
"""What the page tells an adapter of custom metrics."""
SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
SYNC_S = 15
"""Seconds between two decisions of an HPA."""
IN_TIME, PROPOSING, TRIED = 12, 0.25, 0.01
"""Sessions that a draft has proposals for in time, the share of a round in which a session waits
for one, and the share of rounds that still try a draft that is late."""


def scaled(scaler):
    return scaler["metadata"]["labels"][COMPONENT]


def queries(documents):
    """Each role with an expression that it is scaled by."""
    for scaler in of_kind(documents, "ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            if trigger["type"] == "prometheus":
                yield scaled(scaler), trigger["metadata"]


@pytest.mark.parametrize("case", [case for case in CASES if case in ("large-cluster", "keda")])
def test_all_roles_are_scaled_each_by_itself(case):
    scalers = of_kind(rendered(case), *SCALERS)
    assert sorted(map(scaled, scalers)) == sorted(at.role for at in service_pods(rendered(case)))


def test_what_requests_wait_for_is_added_at_once_and_a_draft_after_a_minute():
    for scaler in of_kind(rendered("keda"), "ScaledObject"):
        rules = scaler["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]
        waits_s = 60 if scaled(scaler) == "draft" else 0
        assert rules["stabilizationWindowSeconds"] == waits_s, title(scaler)


def test_no_two_controllers_scale_one_workload(documents):
    chosen = [at["spec"]["scaleTargetRef"] for at in of_kind(documents, *SCALERS)]
    names = [(at.get("kind", "Deployment"), at["name"]) for at in chosen]
    assert len(set(names)) == len(names)
    for kind, name in names:
        assert named(documents, kind, name)
    for workload in of_kind(documents, "Deployment"):
        assert workload["spec"]["replicas"] >= 1


def test_a_scaler_goes_from_few_pods_to_more(documents):
    for scaler in of_kind(documents, *SCALERS):
        spec = scaler["spec"]
        least = spec.get("minReplicas", spec.get("minReplicaCount"))
        most = spec.get("maxReplicas", spec.get("maxReplicaCount"))
        can_have_none = scaler["kind"] == "ScaledObject" and scaled(scaler) == "draft"
        assert (0 if can_have_none else 1) <= least < most, title(scaler)


def test_drafts_are_kept_for_sessions_of_targets_and_come_back_from_zero_by_them():
    """Without a draft there is no series of drafts."""
    documents = rendered("keda")
    (scaler,) = (at for at in of_kind(documents, "ScaledObject") if scaled(at) == "draft")
    assert scaler["spec"]["minReplicaCount"] == 0 and scaler["spec"]["cooldownPeriod"] == 600
    found = [at for role, at in queries(documents) if role == "draft"]
    told = [at for at in found if at["ignoreNullValues"] == "false"]
    assert [spoken(at["query"]).selectors[0].name for at in told] == ["slipstream_sessions"]
    assert 'pod=~"demo-slipstream-target-smollm2-135m-' in told[0]["query"]


def metrics(documents):
    """Each role whose pods export a metric that an HPA goes by, with the metric's name."""
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        assert scaler["spec"]["metrics"], title(scaler)
        for at in scaler["spec"]["metrics"]:
            if at["type"] == "Pods":
                yield scaled(scaler), at["pods"]["metric"]["name"]
            elif at["type"] == "External":
                labels = at["external"]["metric"]["selector"]["matchLabels"]
                yield labels["app_kubernetes_io_component"], at["external"]["metric"]["name"]


def test_metrics_of_autoscalers_are_offered_by_the_adapter_of_the_page(documents):
    for role, name in metrics(documents):
        for at in spoken(filled(offered(name), name)).selectors:
            assert at.name in all_samples(), f"nobody exports {at.name}"
            assert role in ROLES_OF[at.name], at.name


def test_drafts_grow_by_the_proposals_that_are_there_at_once():
    """Seconds in queue and engine, of one second: KEDA's query and the adapter's for an HPA."""
    keda = [at["query"] for role, at in queries(rendered("keda")) if role == "draft"]
    (drafting,) = (query for query in keda if "slipstream_sessions" not in query)
    (name,) = {name for role, name in metrics(rendered("large-cluster")) if role == "draft"}
    for query in (drafting, offered(name)["metricsQuery"]):
        rates = re.findall(r"rate\(slipstream_draft_(\w+)_duration_seconds_sum\{", query)
        assert query.startswith("sum(") and rates == ["queue", "engine"]


def offered(name):
    """The rule of the page by which an adapter offers a metric: under its own name or another."""
    (rule,) = (
        at
        for at in (*ADAPTER["custom"], *ADAPTER["external"])
        if at.get("name", {}).get("as") == name
        or ("name" not in at and re.fullmatch(series_of(at), name))
    )
    return rule


def series_of(rule):
    """The names, as a pattern, of the series that a rule is about."""
    named = re.match(r'\{__name__=~"(.*?)"|(\w+)', rule["seriesQuery"])
    return named[1] or named[2]


def filled(rule, name):
    """The query of a rule, as an adapter fills it in for a series."""
    told = {"<<.Series>>": name, "<<.LabelMatchers>>": 'namespace="a"', "<<.GroupBy>>": "pod"}
    query = rule["metricsQuery"]
    for hole, text in told.items():
        query = query.replace(hole, text)
    return query


def test_queries_speak_of_series_of_this_release_by_labels_that_those_have(documents, tmp_path):
    by_pod = {name: labels | BY_POD for name, labels in all_samples().items()}
    found = [metadata for _, metadata in queries(documents)]
    for metadata in found:
        assert float(metadata["threshold"]) > 0
        assert metadata["serverAddress"].startswith("http")
        known_labels(metadata["query"], by_pod | dict.fromkeys(RECORDED, BY_POD))
        assert 'namespace="serving"' in metadata["query"]
        assert "demo-slipstream-" in metadata["query"]
    if found:
        check_expressions(tmp_path, (metadata["query"] for metadata in found))


def test_queries_choose_pods_of_their_own_model_alone():
    names = ["llama", "llama-3", "Llama-3-1"]
    values = {"models": [{"name": at} for at in names], "target.autoscaling.keda.enabled": True}
    documents = with_values({**values, "autoscaling.prometheusAddress": "http://p"})
    told = [at["query"] for _, at in queries(documents) if "slipstream_waiting" in at["query"]]
    for query, name in product(told, names):
        pod = f"demo-slipstream-target-{name.lower()}-6fd8b7c9d-x2x4z"
        (pattern,) = re.findall(r'pod=~"(.*?)"', query)
        assert bool(re.fullmatch(pattern, pod)) is (told.index(query) == names.index(name))


def read_by(documents):
    """Each port that a monitor reads, with the role and all ports of the pod or service there."""
    there = pods(documents)
    things = [("PodMonitor", (at.role, at.model), at.labels, set(at.ports)) for at in there]
    for it in of_kind(documents, "Service"):
        role, ports = it["spec"]["selector"][COMPONENT], {at["name"] for at in it["spec"]["ports"]}
        things.append(("ServiceMonitor", (role, None), it["metadata"]["labels"], ports))
    for monitor, (kind, role, labels, ports) in product(documents, things):
        if monitor["kind"] == kind and matches(monitor["spec"]["selector"], labels):
            field = "podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"
            yield from ((at["port"], role, ports) for at in monitor["spec"][field])


def test_monitors_read_every_pod_once_at_a_port_that_it_has(documents):
    """Twice would double every rate."""
    found = list(read_by(documents))
    assert all(port in ports for port, _, ports in found)
    if monitors := of_kind(documents, "PodMonitor", "ServiceMonitor"):
        read = [(role, port) for port, role, _ in found]
        assert len(read) == len(set(read))
        pages = {(at.role, name) for at in service_pods(documents) for name in at.ports}
        assert {at for at in pages if at[1].endswith("metrics")} <= {(it[0], at) for it, at in read}
    assert all(MODEL in at["spec"]["podTargetLabels"] for at in monitors)


def drafts_after(spec, load):
    """The drafts that an HPA has under a load, sessions of targets each `SYNC_S` seconds.

    Where a draft has more than `IN_TIME` sessions it is late, and they only try it now and then.
    """
    rule, replicas, wanted = spec["behavior"]["scaleDown"], [8], [8]
    for sessions in load:
        now = replicas[-1]
        tried = TRIED if sessions > IN_TIME * now else 1
        totals = {"Pods": PROPOSING * sessions * tried, "External": sessions}
        goals = {at["type"]: at[at["type"].lower()]["target"] for at in spec["metrics"]}
        for kind, goal in goals.items():
            goals[kind] = totals[kind] * 1000 / int(goal["averageValue"].removesuffix("m")) / now
        most = max(now if abs(it - 1) <= 0.1 else ceil(it * now) for it in goals.values())
        wanted.append(min(max(most, spec["minReplicas"]), spec["maxReplicas"]))
        window = wanted[-rule["stabilizationWindowSeconds"] // SYNC_S :]
        least = []
        for policy in rule["policies"]:
            start = replicas[-policy["periodSeconds"] // SYNC_S :][0]
            share = start / 100 if policy["type"] == "Percent" else 1
            least.append(int(start - share * policy["value"]))
        replicas.append(min(now, max(min(least), *window)) if wanted[-1] < now else wanted[-1])
    return replicas


def test_drafts_that_are_late_are_not_taken_away_for_being_used_less():
    """Requests give up drafts that are late: by use alone, few drafts would get fewer yet."""
    found = of_kind(rendered("several-models"), "HorizontalPodAutoscaler")
    (spec,) = (at["spec"] for at in found if scaled(at) == "draft")
    hour = 3600 // SYNC_S
    after = drafts_after(spec, load := [96] * hour + [12] * hour + [96] * hour)
    assert after[hour] == after[-1] == 8 and after[2 * hour] < 4
    assert drafts_after({**spec, "metrics": spec["metrics"][:1]}, load)[-1] == spec["minReplicas"]
    steps = [(a, b) for a, b in zip(after, after[300 // SYNC_S :], strict=False) if b < a]
    assert steps and all(a - b <= max(1, ceil(a / 4)) for a, b in steps)


def test_dashboard_and_alerts_are_shipped_as_they_are():
    documents = rendered("large-cluster")
    (rules,) = of_kind(documents, "PrometheusRule")
    assert rules["spec"]["groups"] == RULES["groups"]
    board = (CHART / "dashboards/slipstream.json").read_text()
    shipped = [
        text
        for at in of_kind(documents, "ConfigMap")
        for name, text in at["data"].items()
        if name.endswith(".json")
    ]
    assert [text.strip() for text in shipped] == [board.strip()]
