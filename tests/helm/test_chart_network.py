"""Services of the chart lead to pods, and policies let through exactly the hops that there are."""

import re
from itertools import product

import pytest
import yaml

from support.deployment.charts import (
    COMPONENT,
    MODEL,
    NAMESPACE,
    ROLES,
    ROOT,
    SERVICES,
    every_case,
    models_of,
    named,
    of_kind,
    pods,
    rendered,
    resident_draft,
    service_pods,
    settings,
    title,
    with_values,
)
from support.deployment.kube_policies import End, admits, matches

HOPS = {("router", "target"), ("router", "draft"), ("draft", "target")}
HOPS |= {(role, "redis") for role in ROLES}
HOPS |= {(caller, "router") for caller in ("test", "elsewhere", "outside", "http")}
"""Who calls whom at the port that serves; everybody may call routers."""
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
HERE = {"kubernetes.io/metadata.name": NAMESPACE}
MONITORING = End({"app": "prometheus"}, "monitoring", {"kubernetes.io/metadata.name": "monitoring"})
OUTSIDE = {
    "elsewhere": End({"app": "shop"}, "shop", {"kubernetes.io/metadata.name": "shop"}),
    "outside": End(address="203.0.113.9"),
    "neighbour": End({"app": "shop"}, NAMESPACE, HERE),
}


def policies_of(documents):
    return of_kind(documents, "NetworkPolicy")


def ends(documents, model=None):
    """Pods of a release by role, for the only model or a named one, and who else there is."""
    there = [*pods(documents), *filter(None, [resident_draft(documents)])]
    model = model or min(models_of(documents))
    there = [pod for pod in there if pod.role and pod.labels.get(MODEL, model) == model]
    return {**{pod.role: End(pod.labels, NAMESPACE, HERE, pod.ports) for pod in there}, **OUTSIDE}


def serving(everybody):
    """Ports that serve, by role."""
    return {role: port_of(end) for role, end in everybody.items() if end.ports}


def port_of(end):
    return end.ports.get("grpc") or end.ports.get("http") or end.ports.get("redis")


def hops(documents, model=None):
    policies, everybody = policies_of(documents), ends(documents, model)
    return {
        (source, target)
        for target, port in serving(everybody).items()
        for source in everybody
        if port
        and source != target
        and admits(policies, everybody[source], everybody[target], port)
    }


def test_every_service_selects_pods_and_leads_to_a_port_that_they_have(documents):
    for service in of_kind(documents, "Service"):
        selected = [at for at in pods(documents) if matches_service(service, at)]
        assert selected, title(service)
        assert len({at.role for at in selected}) == 1, title(service)
        for pod in selected:
            for port in service["spec"]["ports"]:
                at = port.get("targetPort", port["port"])
                assert at in pod.ports or at in pod.ports.values(), title(service)
                assert port["port"] == pod.ports.get(at, at), title(service)


def matches_service(service, pod):
    return matches({"matchLabels": service["spec"]["selector"]}, pod.labels)


def test_every_role_has_a_service_that_balances_and_a_headless_one_that_names_pods(documents):
    for pod in service_pods(documents):
        names = {f"demo-slipstream-{pod.role}", f"demo-slipstream-{pod.role}-headless"}
        found = [at for at in of_kind(documents, "Service") if matches_service(at, pod)]
        mine = [at for at in found if at["metadata"]["name"] in names]
        headless = [at["spec"].get("clusterIP") == "None" for at in mine]
        assert sorted(headless) == [False, True], pod.owner


def test_workloads_select_their_own_pods_and_no_others(documents):
    for workload in of_kind(documents, "Deployment", "StatefulSet"):
        chosen = [at for at in pods(documents) if matches(workload["spec"]["selector"], at.labels)]
        assert [at.owner for at in chosen] == [title(workload)]


def test_selectors_do_not_change_with_a_version_or_labels_of_all():
    """They can't be changed in an upgrade."""
    selectors = [
        {title(at): at["spec"]["selector"] for at in of_kind(documents, "Deployment")}
        for documents in (with_values(), with_values({"commonLabels.a": "b", "image.tag": "2.0.0"}))
    ]
    assert selectors[0] == selectors[1]
    assert not any("version" in repr(at) for at in selectors[0].values())


def test_replicas_that_can_be_evicted_have_a_budget_that_leaves_some(documents):
    for budget in of_kind(documents, "PodDisruptionBudget"):
        chosen = [at for at in pods(documents) if matches(budget["spec"]["selector"], at.labels)]
        assert len({at.owner for at in chosen}) == 1, title(budget)
        assert len({"minAvailable", "maxUnavailable"} & set(budget["spec"])) == 1, title(budget)
        assert budget["spec"].get("maxUnavailable") not in (0, "0", "0%"), title(budget)


@every_case()
def test_policies_let_through_the_hops_that_there_are_and_no_other(case):
    documents = rendered(case)
    there = {*serving(ends(documents)), *OUTSIDE, "test"}
    wanted = {hop for hop in HOPS if set(hop) <= there}
    if case in ("large-cluster", "production"):  # callers are named there
        wanted -= {("elsewhere", "router"), ("outside", "router")}
    else:
        wanted |= {("neighbour", "router")}
    if "http" in there and case not in ("http", "inference-gateway"):  # callers are named there
        wanted |= {(caller, "http") for caller in (*OUTSIDE, "test")}
    if "ray" in ends(documents):  # its processes talk to each other at any port
        wanted |= {("ray", "draft"), ("ray", "target"), ("target", "draft")}
    for model in models_of(documents):
        assert hops(documents, model) == wanted


def test_drafts_read_from_targets_of_their_own_model_alone():
    documents = rendered("several-models")
    policies, models = policies_of(documents), models_of(documents)
    for own, other in product(models, repeat=2):
        draft, target = ends(documents, own)["draft"], ends(documents, other)["target"]
        assert admits(policies, draft, target, "grpc") is (own == other), f"{own} from {other}"


def test_metrics_are_read_by_monitoring_alone_and_no_pod_goes_elsewhere(documents):
    policies, everybody = policies_of(documents), ends(documents)
    for pod in service_pods(documents):
        target = End(pod.labels, NAMESPACE, HERE, pod.ports)
        assert admits(policies, MONITORING, target, "metrics"), pod.owner
        for other in OUTSIDE.values():
            assert not admits(policies, other, target, "metrics"), pod.owner
    for role in {pod.role for pod in pods(documents)} & {*SERVICES, "redis"}:
        assert role == "redis" or admits(policies, everybody[role], everybody["outside"], 53), role
        assert not admits(policies, everybody[role], everybody["outside"], 80), role
        assert not admits(policies, everybody[role], everybody["elsewhere"], 8080), role


def test_a_pod_that_fetches_models_reaches_the_hub_and_others_do_not():
    documents = rendered("minimal-cpu")
    policies, everybody = policies_of(documents), ends(documents)
    hub = everybody["outside"]
    assert admits(policies, everybody["target"], hub, 443)
    assert not admits(policies, everybody["router"], hub, 443)
    documents = rendered("large-cluster")
    assert not admits(policies_of(documents), ends(documents)["target"], hub, 443)


def test_an_external_redis_is_reached_where_it_is_and_nowhere_else():
    documents = rendered("external-redis")
    policies, everybody = policies_of(documents), ends(documents)
    for role in ROLES:
        assert admits(policies, everybody[role], End(address="192.0.2.7"), 6380)
        assert not admits(policies, everybody[role], End(address="192.0.2.7"), 6379)
        assert not admits(policies, everybody[role], End(address="198.51.100.7"), 6380)


REDIS, HUB, OTLP = "redis.external.url", "modelStore.pull.endpoint", "telemetry.otlp.endpoint"
HTTP = {"telemetry.otlp.protocol": "http"}


@pytest.mark.parametrize(
    ("path", "url", "more", "opened", "closed"),
    [
        (REDIS, "redis://r", {}, {6379}, {6380}),
        (REDIS, "rediss://r:6380/0", {}, {6380}, {6379}),
        (REDIS, "redis://[2001:db8::1]:7001", {}, {7001}, {6379, 8}),
        (REDIS, "redis://r:7", {"networkPolicy.redisPorts": [7000]}, {7, 7000}, {6379}),
        (HUB, "", {}, {443}, {80}),
        (HUB, "http://hub.example.com/models", {}, {80}, {443}),
        (HUB, "https://hub.example.com", {}, {443}, {80}),
        (HUB, "https://hub:8443", {"networkPolicy.hubPorts": [443]}, {8443, 443}, {80}),
        (OTLP, "http://collector:4317", {}, {4317}, {4318}),
        (OTLP, "http://collector", {}, {443}, {80, 4317}),
        (OTLP, "http://collector/v1", HTTP, {80}, {443, 4318}),
        (OTLP, "https://c:4318", {"networkPolicy.otlpPorts": [9]}, {4318, 9}, {443}),
    ],
)
def test_policies_open_the_ports_of_a_url_and_no_others(path, url, more, opened, closed):
    documents = with_values({"redis.enabled": path != REDIS, path: url, **more})
    policies = policies_of(documents)
    source = ends(documents)["target" if path == HUB else "router"]
    found = {port for port in opened | closed if admits(policies, source, OUTSIDE["outside"], port)}
    assert found == opened


def test_rules_of_operators_come_on_top():
    rule = {"ports": [{"port": 50050}]}
    documents = with_values({f"{role}.networkPolicy.extraIngress": [rule] for role in ROLES})
    for found, is_open in ((documents, True), (rendered("tls"), False)):
        everybody = ends(found)
        for role in ROLES:
            reached = admits(policies_of(found), everybody["elsewhere"], everybody[role], 50050)
            assert reached is is_open, role


def test_routers_reach_engines_of_other_releases_that_both_name_and_no_others():
    page = (ROOT / "docs/kubernetes.md").read_text().partition("### Models of another release")[2]
    own, other = (yaml.safe_load(at) for at in BLOCK.findall(page)[:2])
    first, second = with_values(own), with_values(other, release="second")
    policies = [*policies_of(first), *policies_of(second)]
    ours, theirs = ends(first), ends(second)
    wanted = {("router", "target"), ("router", "draft")}
    for source in ours:
        for role in ("target", "draft"):
            reached = admits(policies, ours[source], theirs[role], port_of(theirs[role]))
            assert reached is ((source, role) in wanted), f"{source} to {role}"
    for role in ("target", "draft"):
        assert admits(policies, theirs[role], ours["redis"], 6379)
        assert not admits(policies, theirs[role], ours["target"], port_of(ours["target"]))
    assert not any(
        admits(policies_of(second), ours["router"], theirs["target"], port)
        for port in (50062, 9464)
    )


def test_the_front_is_called_from_where_callers_are_named_and_reaches_routers_that_name_theirs():
    documents = rendered("http")
    gateway = End({"app": "gateway"}, "gateway", {"kubernetes.io/metadata.name": "gateway"})
    assert admits(policies_of(documents), gateway, ends(documents)["http"], 8000)
    peer = {"podSelector": {"matchLabels": {"app": "other"}}}
    closed = with_values({"networkPolicy.routerFrom": [peer]}, "http")
    assert ("http", "router") in hops(closed) and ("elsewhere", "router") not in hops(closed)


def test_routers_find_replicas_by_redis_or_by_headless_services():
    by_redis = settings(rendered("tls"))["router"]
    assert by_redis["targets"] == by_redis["drafts"] == ["registry:"]
    documents = rendered("minimal-cpu")
    router = settings(documents)["router"]
    for role in ("target", "draft"):
        (found,) = router[f"{role}s"]
        host, _, port = found.removeprefix("dns:///").rpartition(":")
        name, namespace, kind = host.split(".")[:3]
        service = named(documents, "Service", name)
        assert (namespace, kind) == (NAMESPACE, "svc")
        assert service["spec"]["clusterIP"] == "None"
        assert int(port) == service["spec"]["ports"][0]["port"]
        assert service["spec"]["selector"][COMPONENT] == role
