"""Pods of the chart run with as little as they need, are probed as they should be, and drain."""

import json

import pytest

from support.deployment.charts import (
    models_of,
    of_kind,
    pods,
    secret_texts,
    service_pods,
    settings,
    title,
    with_values,
)
from support.deployment.kube_schemas import places

SECRET_WORDS = ("password", "token", "sha256", "secret")


def test_every_pod_runs_with_as_little_as_it_needs_and_shares_nothing(documents):
    for pod in pods(documents):
        whole = pod.spec["securityContext"]
        assert whole["runAsNonRoot"] is True, pod.owner
        assert whole["runAsUser"] > 0 and whole["runAsGroup"] > 0, pod.owner
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, pod.owner
        for container in pod.containers:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True, pod.owner
            assert own["allowPrivilegeEscalation"] is False, pod.owner
            assert own["capabilities"] == {"drop": ["ALL"]}, pod.owner
            assert not own.get("privileged"), pod.owner
        asks = pod.role == "ray"  # Ray's head asks for pods, by an account that KubeRay makes
        assert asks or pod.spec["automountServiceAccountToken"] is False, pod.owner
        assert not any(pod.spec.get(at) for at in ("hostNetwork", "hostPID", "hostIPC"))
        assert not any("hostPath" in volume for volume in pod.spec.get("volumes", ()))
        # A variable SLIPSTREAM_ROUTER_PORT, from a service of that name, would be refused.
        assert pod.spec["enableServiceLinks"] is False, pod.owner
    for account in of_kind(documents, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert of_kind(documents, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding") == []


def test_accounts_and_claims_that_pods_name_are_there(documents):
    accounts = {at["metadata"]["name"] for at in of_kind(documents, "ServiceAccount")}
    claims = {at["metadata"]["name"] for at in of_kind(documents, "PersistentVolumeClaim")}
    for pod in pods(documents):
        assert pod.spec.get("serviceAccountName", "default") in {*accounts, "default"}
        for volume in pod.spec.get("volumes", ()):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in {*claims, "models"}, pod.owner


def test_every_mount_has_its_volume_and_every_volume_is_mounted(documents):
    templates = {
        title(at): [claim["metadata"]["name"] for claim in at["spec"]["volumeClaimTemplates"]]
        for at in of_kind(documents, "StatefulSet")
    }
    for pod in pods(documents):
        volumes = [at["name"] for at in pod.spec.get("volumes", ())]
        volumes += templates.get(pod.owner, [])
        mounts = [at for container in pod.containers for at in container.get("volumeMounts", ())]
        assert len(set(volumes)) == len(volumes), pod.owner
        assert {at["name"] for at in mounts} == set(volumes), pod.owner
        for container in pod.containers:
            paths = [at["mountPath"] for at in container.get("volumeMounts", ())]
            assert len(set(paths)) == len(paths), pod.owner


def test_configuration_that_pods_mount_or_read_is_there(documents):
    maps = {at["metadata"]["name"]: at["data"] for at in of_kind(documents, "ConfigMap")}
    for pod in pods(documents):
        for name, keys in read_maps(pod):
            assert keys <= set(maps[name]), pod.owner


def read_maps(pod):
    """ConfigMaps that a pod reads, each with the keys that it wants there."""
    maps = {"configMap", "configMapKeyRef", "configMapRef"}
    for _, value in places(pod.spec):
        for kind in maps & set(value if isinstance(value, dict) else ()):
            at = value[kind]
            keys = {item["key"] for item in at.get("items", ())}
            yield at["name"], keys | ({at["key"]} if "key" in at else set())


def test_services_are_probed_at_their_port_of_health_and_the_front_by_the_scheme_it_serves(
    documents,
):
    for pod in service_pods(documents):
        own = settings(documents, pod.model)[pod.role]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            at = pod.main[probe]
            (kind,) = {"exec", "grpc", "httpGet", "tcpSocket"} & set(at)
            if pod.role == "http":
                scheme = "HTTPS" if "tls_cert" in own else "HTTP"
                assert (kind, at[kind]["port"], at[kind]["scheme"]) == ("httpGet", "http", scheme)
            else:
                assert (kind, at[kind]["port"]) == ("grpc", pod.ports["health"]), pod.owner
                assert own["health_address"].endswith(f":{pod.ports['health']}")


def test_a_pod_has_time_to_load_and_is_not_killed_for_a_short_pause(documents):
    budgets = {"router": 60, "draft": 300, "target": 600, "http": 60}
    for pod in service_pods(documents):
        startup, liveness = pod.main["startupProbe"], pod.main["livenessProbe"]
        budget = startup["periodSeconds"] * startup["failureThreshold"]
        assert budget >= budgets[pod.role], pod.owner
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60, pod.owner
        assert pod.main["readinessProbe"]["periodSeconds"] <= 5


def test_a_pod_that_stops_is_off_the_lists_first_and_has_time_for_the_longest_request(documents):
    for pod in service_pods(documents):
        wait = pod.main["lifecycle"]["preStop"]["sleep"]["seconds"]
        grace = settings(documents, pod.model)[pod.role]["grace_s"]
        assert 0 < wait < grace
        assert pod.spec["terminationGracePeriodSeconds"] >= wait + grace + 30, pod.owner


def test_the_grace_is_longer_than_the_longest_generation():
    documents = with_values({"longestGenerationSeconds": 1234})
    for pod in service_pods(documents):
        assert settings(documents)[pod.role]["grace_s"] > 1234, pod.owner
    assert settings(documents)["router"]["max_connection_age_grace_s"] > 1234


def test_variables_that_name_a_secret_hold_none(documents):
    for pod in pods(documents):
        for container in pod.containers:
            for variable in container.get("env", ()):
                secret = any(word in variable["name"].lower() for word in SECRET_WORDS)
                assert not secret or "value" not in variable, variable["name"]
    for tables in models_of(documents).values():
        assert all("store_password" not in table for table in tables.values())


def test_what_a_secret_holds_stands_nowhere_else(documents):
    others = json.dumps([at for at in documents if at["kind"] != "Secret"])
    for secret in of_kind(documents, "Secret"):
        for name, text in secret_texts(secret).items():
            assert len(text) >= 16, f"{name} of {title(secret)} is easily guessed"
            assert all(line not in others for line in text.split() if len(line) >= 16), name


def test_secrets_that_the_chart_makes_are_used_and_are_the_only_ones_it_can_make(documents):
    made = {at["metadata"]["name"] for at in of_kind(documents, "Secret")}
    text = repr([pod.spec for pod in pods(documents)])
    assert all(f"'{name}'" in text for name in made)


def test_a_digest_goes_before_a_tag_and_a_registry_before_a_name():
    digest = "sha256:" + "5" * 64
    documents = with_values(
        {
            "image.registry": "r.example.com:5000",
            "image.tag": "9.9",
            "draft.image.digest": digest,
            "target.image.registry": "other.example.com",
            "target.image.tag": "1.2",
            "target.gpu.count": 1,
        }
    )
    images = {pod.role: pod.main["image"] for pod in service_pods(documents)}
    assert images["router"] == "r.example.com:5000/slipstream/router:9.9"
    assert images["draft"] == f"r.example.com:5000/slipstream/draft@{digest}"
    assert images["target"].startswith("other.example.com/slipstream/target:1.2")


@pytest.mark.parametrize("count", [1, 4])
def test_a_target_asks_for_its_gpus_and_spreads_its_model_over_them(count):
    documents = with_values({"target.gpu": {"count": count, "resourceName": "amd.com/gpu"}})
    (pod,) = (at for at in service_pods(documents) if at.role == "target")
    resources = pod.main["resources"]
    assert resources["limits"]["amd.com/gpu"] == count
    assert resources.get("requests", {}).get("amd.com/gpu", count) == count
    target = settings(documents)["target"]
    assert target["device"] == "cuda"
    assert target.get("tensor_parallel", 1) == count
    shared = [at for at in pod.main["volumeMounts"] if at["mountPath"] == "/dev/shm"]
    assert bool(shared) is (count > 1)


HEADS = [
    ("glide", {}, None, ["small"]),
    ("eagle3:o/head-70B", {}, "auto", ["small", "eagle3:o/head-70B"]),
    ("eagle3:/head", {"hidden_layers": "7"}, "7", ["small"]),
]


@pytest.mark.parametrize(("draft", "config", "layers", "pulled"), HEADS)
def test_targets_beside_an_eagle3_draft_keep_hidden_states(draft, config, layers, pulled):
    models = [{"name": "small", "draft": draft}]
    documents = with_values({"models": models, "target.config": config, "modelStore.type": "pvc"})
    assert settings(documents)["target"].get("hidden_layers") == layers
    (pod,) = (at for at in service_pods(documents) if at.role == "draft")
    commands = [at["command"] for at in pod.spec["initContainers"]]
    assert [command[-1] for command in commands if "pull" in command] == pulled
