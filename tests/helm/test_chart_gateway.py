"""Behind an inference gateway the front's pods are a pool; a picker reads them, and chooses."""

import re

import pytest
import yaml

from slipstream.config import load_config, parse_flags
from slipstream.telemetry.config import TelemetryConfig
from support.deployment.charts import (
    CONFIGS,
    NAMESPACE,
    ROOT,
    of_kind,
    pods,
    rendered,
    service_pods,
    with_values,
)
from support.deployment.kube_policies import End, admits, matches
from support.deployment.kube_schemas import NEWEST, pod_faults

PAGE = (ROOT / "docs/how-to/inference-gateway.md").read_text()
SERVICE = yaml.safe_load(re.search(r"llm.yaml <<'END'\n(.*?)^END$", PAGE, re.M | re.S)[1])
CASE = "inference-gateway"
ENGINE = "llm-d.ai/engine-type"
HERE = {"kubernetes.io/metadata.name": NAMESPACE}


def front():
    (pod,) = (at for at in service_pods(rendered(CASE)) if at.role == "http")
    return pod


def test_the_pool_is_the_pods_of_the_front_at_the_port_that_they_serve():
    (pool,) = of_kind(rendered(CASE), "InferencePool")
    selected = [at for at in pods(rendered(CASE)) if matches(pool["spec"]["selector"], at.labels)]
    assert [at.owner for at in selected] == [front().owner]
    assert pool["spec"]["targetPorts"] == [{"number": front().ports["http"]}]
    picker = pool["spec"]["endpointPickerRef"]
    assert (picker["name"], picker["port"]) == ("demo-epp", {"number": 9002})


def test_the_route_leads_to_the_pool_and_waits_for_the_longest_generation():
    documents = with_values({"longestGenerationSeconds": 1234}, CASE)
    (route,), (pool,) = of_kind(documents, "HTTPRoute"), of_kind(documents, "InferencePool")
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    group = pool["apiVersion"].partition("/")[0]
    assert backend == {"group": group, "kind": pool["kind"], "name": pool["metadata"]["name"]}
    assert rule["timeouts"] == {"request": "1234s"}
    assert [at["path"]["value"] for at in rule["matches"]] == ["/v1"]


def test_pods_of_the_front_have_an_engine_type_where_a_picker_reads_them_and_nowhere_else():
    assert front().labels[ENGINE] == "slipstream"
    for case in ("http", "tls"):
        assert all(ENGINE not in at.labels for at in service_pods(rendered(case)))
    assert all(ENGINE not in at.labels for at in service_pods(rendered(CASE)) if at.role != "http")


def test_the_picker_reads_metrics_and_the_gateway_alone_sends_requests():
    policies = of_kind(rendered(CASE), "NetworkPolicy")
    pod = front()
    serving = End(pod.labels, NAMESPACE, HERE, pod.ports)
    picker = End({"inferencepool": "demo-epp"}, NAMESPACE, HERE)
    gateway = End({"app": "gateway"}, "gateway", {"kubernetes.io/metadata.name": "gateway"})
    assert admits(policies, picker, serving, "metrics")
    assert admits(policies, gateway, serving, "http")
    assert not admits(policies, gateway, serving, "metrics")
    assert not admits(policies, picker, serving, "http")


@pytest.mark.parametrize("version", NEWEST)
def test_kubernetes_takes_the_pod_that_the_page_has_for_kserve(version):
    template = {"metadata": {"name": "a"}, "spec": SERVICE["spec"]["template"]}
    assert pod_faults(template, version) == []


def test_containers_of_that_pod_are_services_that_find_each_other():
    containers = {at["name"]: at for at in SERVICE["spec"]["template"]["containers"]}
    containers["http"] = containers.pop("main")
    assert set(containers) == set(CONFIGS)
    configs = {}
    for name, cls in CONFIGS.items():
        flags, _ = parse_flags([cls, TelemetryConfig], containers[name]["args"], prog=name, doc="")
        configs[name] = load_config(cls, section=name, file=None, env={}, flags=flags[0])
    router = configs["router"]
    assert configs["http"].router == router.listen.address
    assert configs["http"].host_and_port()[1] == containers["http"]["ports"][0]["containerPort"]
    assert list(router.targets) == [configs["target"].listen.address]
    assert list(router.drafts) == [configs["draft"].listen.address]
    assert configs["draft"].target_model == configs["target"].model
