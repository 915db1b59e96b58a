"""Values that are wrong are refused, by the schema with their path, or with a sentence."""

import json
import re
from copy import deepcopy

import pytest
import yaml
from jsonschema.validators import validator_for

from reference.values_page import TWINS, values
from reference.values_page import VALUES as FILE
from slipstream.options import options_of
from slipstream.telemetry.config import TelemetryConfig
from support.deployment.charts import (
    CASES,
    CHART,
    CONFIGS,
    NEWEST_HELM,
    every_helm,
    rendered,
    settings,
    template,
    with_values,
)

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
LARGE = "meta-llama/Llama-3.3-70B-Instruct"
WRONG = {
    "router.replicas": -1,
    "draft.replicas": "two",
    "target.gpu.count": 1.5,
    "target.gpu.cuont": 1,
    "rooter": {"replicas": 1},
    "target.image.digest": "sha256:short",
    "target.image.pullPolicy": "Sometimes",
    "router.service.type": "Nodeport",
    "router.ports.grpc": 70000,
    "router.config.max_request": 9,
    "router.config.max_requests": "many",
    "http.config.listen_address": "0.0.0.0:1",
    "draft.config.kv_encoding": 8,
    "target.config.store_password": "hunter2",
    "target.config.address": "0.0.0.0:1",
    "modelStore.type": "hostPath",
    "modelStore.size": "many",
    "telemetry.traceRatio": 2,
    "telemetry.otlp.protocol": "udp",
    "telemetry.otlp.endpoint": "http://user:password@collector:4317",
    "longestGenerationSeconds": 0,
    "discovery": "guess",
    "auth.keys": {"alice": {"token": "in the clear"}},
    "redis.external.url": "redis+sentinel://redis:26379/main",
    "tls.certManager.issuerRef.kind": "Isuer",
    "inferenceGateway.endpointPicker.failureMode": "Fail",
    "models": [{"name": "a", "overrides": {"target": {"ports": {"grpc": 1}}}}],
}
"""Each a mistake, in a value that is otherwise right."""
GATEWAY = {
    "http.enabled": True,
    "inferenceGateway.enabled": True,
    "inferenceGateway.parentRefs": [{"name": "gateway"}],
    "inferenceGateway.endpointPicker.service": "picker",
}
ONE_GPU = {
    "draft.placement": "target",
    "draft.config.kv_memory": "4GiB",
    "target.config.kv_memory": "2.5 TiB",
    "target.gpu.count": 1,
}
CANT = {
    "two routers that share nothing": {"redis.enabled": False, "router.replicas": 2},
    "two controllers of one role": {
        "draft.autoscaling.hpa.enabled": True,
        "draft.autoscaling.keda.enabled": True,
        "autoscaling.prometheusAddress": "http://prometheus:9090",
    },
    "KEDA without Prometheus": {"draft.autoscaling.keda.enabled": True},
    **{
        f"Ray and {scaler} of {role}s": {
            "ray.enabled": True,
            "autoscaling.prometheusAddress": "http://prometheus:9090",
            f"{role}.autoscaling.{scaler}.enabled": True,
        }
        for role in ("draft", "target")
        for scaler in ("hpa", "keda")
    },
    "Ray without Redis": {"ray.enabled": True, "redis.enabled": False},
    "two Redis": {"redis.external.url": "redis://redis:6379/0"},
    "a registry without Redis": {"redis.enabled": False, "discovery": "registry"},
    "TLS without certificates": {"tls.enabled": True},
    "cert-manager without an issuer": {"tls.enabled": True, "tls.certManager.enabled": True},
    "keys without a key": {"auth.enabled": True},
    "a claim without its name": {"modelStore.type": "existingClaim"},
    "an empty store that nobody fills": {"modelStore.readOnly": True},
    "a draft on two GPUs": {"draft.gpu.count": 2},
    **{
        f"a draft in its target's pod with {path}": {**ONE_GPU, path: value}
        for values in (
            {"target.gpu.count": 0, "ray.enabled": True, "draft.gpu.count": 1, "draft.replicas": 2},
            {"draft.nodeSelector": {"a": "b"}, "draft.image.tag": "9", "draft.ports.grpc": 9465},
            {"draft.config.kv_memory": "0.25", "target.config.kv_memory": "auto"},
            {"draft.autoscaling.hpa.enabled": True},
        )
        for path, value in values.items()
    },
    "two monitors": {"metrics.serviceMonitor.enabled": True, "metrics.podMonitor.enabled": True},
    "a monitor of no metrics": {"metrics.enabled": False, "metrics.podMonitor.enabled": True},
    "a front without routers": {"http.enabled": True, "router.enabled": False},
    "keys of callers in the clear": {
        "http.enabled": True,
        "auth": {"enabled": True, "existingSecret": "keys"},
        "tests.enabled": False,
    },
    "a key of the front in the clear": {"http.enabled": True, "http.token.existingSecret": "t"},
    "routers elsewhere, in the clear": {"http.enabled": True, "http.config.router": "r:50051"},
    "a front on a GPU": {"http.enabled": True, "http.gpu.count": 1},
    "the port of metrics twice": {"http.enabled": True, "http.ports.http": 9464},
    "a front that scales to zero": {"http.autoscaling.minReplicas": 0},
    "a gateway without a front": {**GATEWAY, "http.enabled": False},
    "a gateway's route without a gateway": {**GATEWAY, "inferenceGateway.parentRefs": []},
    "a gateway without a picker": {**GATEWAY, "inferenceGateway.endpointPicker.service": ""},
    "a picker without metrics": {**GATEWAY, "metrics.enabled": False},
    "two ports alike": {"router.ports.grpc": 50050},
    "a grace that ends too soon": {"router.drain.terminationGracePeriodSeconds": 20},
    "a role without a limit of memory": {"target.resources.limits.memory": None},
    "an init container without a limit of memory": {"modelStore.pull.resources": None},
    "a request above its limit": {"draft.resources.requests.memory": "6145Mi"},
    "a limit in bytes below its request": {"target.resources.limits.memory": 4294967295},
    "a Redis that is killed before it is full": {"redis.maxMemory": "1gb"},
    "targets that scale to zero": {"target.autoscaling": {"minReplicas": 0}},
    "an HPA that scales to zero": {
        "draft.autoscaling": {"minReplicas": 0, "hpa": {"enabled": True}}
    },
    "a model of 140 GB in 50Gi": {"models": [{"name": LARGE}]},
    "a model and its draft in 50Gi": {"models": [{"name": "a/A-25B", "draft": "vanilla:a/A-6b"}]},
    "two models of one name": {"models": [{"name": "a/A@1"}, {"name": "a/A@2"}]},
    "two models of one name in objects": {"models": [{"name": "a/A.b"}, {"name": "/A_B"}]},
    "a model of no name in objects": {"models": [{"name": "a/_"}]},
    "a fault in what a model overrides": {
        "models": [{"name": "a", "overrides": {"target": {"config": {"device": "cuda"}}}}]
    },
    "two models that fit one by one": {
        "modelStore": {"type": "pvc", "size": "25Gi"},
        "models": [{"name": "a/A-8B@0123abc"}, {"name": "a/A-6b"}],
    },
    "fewer pods at most than at least": {
        "draft.autoscaling": {"hpa": {"enabled": True}, "minReplicas": 5, "maxReplicas": 2}
    },
}
"""Values that are right one by one, and can't work together."""
EVIL = "x\"'\n---\nkind: Pod\nevil: 1\n# {{ . }} $(touch x) `id`; \\"
VALID = validator_for(SCHEMA)(SCHEMA)


def leaves(value, path=""):
    """Yield each value that has none within it, with its path."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from leaves(inner, f"{path}.{name}".lstrip("."))


LEAVES = dict(leaves(VALUES))


def is_valid(path, value):
    """Whether the schema takes a value beside those of the chart."""
    *outer, name = path.split(".")
    inner = given = deepcopy(VALUES)
    for part in outer:
        inner = inner[part]
    inner[name] = value
    return VALID.is_valid(given)


@every_helm()
def test_wrong_values_are_refused_with_their_paths(helm):
    done = template(helm, values=WRONG)
    assert done.returncode != 0
    lines = done.stderr.replace("/", ".").splitlines()
    for path in WRONG:
        outer, _, name = path.rpartition(".")
        assert any(outer in line and name in line for line in lines), f"{path}: {done.stderr}"
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("what", CANT)
def test_values_that_can_not_work_together_are_refused_with_a_sentence(what):
    done = template(NEWEST_HELM, values=CANT[what])
    assert done.returncode != 0
    (said,) = re.findall(r"^Error: execution error at \(.*?\): (.*)$", done.stderr, re.MULTILINE)
    roots = [path.partition(".")[0] for path in CANT[what]]
    assert any(root in said for root in roots), said
    assert "error calling" not in said and "nil pointer" not in said, said


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"target.resources.limits.memory": limit}
            for limit in ("4Gi", 4294967296, "4294968k", "4.1Gi", "1Ti", "4295M")
        ),
        {"models": [{"name": LARGE, "draft": "eagle3:R/R-70B"}], "modelStore.size": "200Gi"},
        {"models": [{"name": f"{LARGE}-AWQ"}]},
        {"models": [{"name": "/models/llama-3.3-70b-instruct"}]},
        {"models": [{"name": "a/A-8B"}, {"name": "a/A-7B"}], "modelStore.size": "15Gi"},
        {"models": [{"name": "own/model"}], "modelStore.size": "1Gi"},
        ONE_GPU,
    ],
)
def test_memory_and_storage_with_room_are_taken_in_any_unit(values):
    assert with_values(values)


def schema_objects(schema, given, path=""):
    """Yield each object of the schema that says what is in it, with its path and its value."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        yield path, schema, given
    inner = given if isinstance(given, dict) else {}
    for name, part in schema.get("properties", {}).items():
        yield from schema_objects(part, inner.get(name), f"{path}.{name}".lstrip("."))


def test_the_schema_has_the_names_of_the_values_and_takes_no_others():
    for path, schema, given in schema_objects(SCHEMA, VALUES):
        assert schema.get("additionalProperties") is False, path
        if isinstance(given, dict) and given and not path.endswith(PARTIAL):
            assert set(schema["properties"]) - {"global"} == set(given), path


PARTIAL = ("ecurityContext", "resources", "requests", "limits", "labels", "capabilities")
"""Kubernetes' own objects: values name a part of what there may be."""


def test_numbers_of_pods_and_ports_are_none_below_zero():
    counts = [path for path in LEAVES if path.endswith(("eplicas", "gpu.count"))]
    assert len(counts) > 7
    assert [path for path in counts if is_valid(path, -1)] == []


def keys(values):
    """Yield every key, and those of files within values, where the text must be a value, too."""
    if isinstance(values, dict):
        yield from values
    if isinstance(values, dict | list):
        for inner in values.values() if isinstance(values, dict) else values:
            yield from keys(inner)
    elif isinstance(values, str) and "evil" in values and values != EVIL:
        yield from (line.partition(":")[0].strip() for line in values.split("\n")[1:-1])


def test_text_of_a_value_adds_no_object_no_field_and_no_line():
    """Values that may be any text, but for those that are lines and objects by their purpose."""
    raw = {"redis.extraConfig", "extraObjects"}
    texts = {path for path, value in LEAVES.items() if value is None or isinstance(value, str)}
    given = [path for path in texts - raw if is_valid(path, EVIL)]
    assert len(given) > 5
    plain, found = rendered("production"), with_values(dict.fromkeys(given, EVIL), "production")
    kinds = [sorted(f"{it['kind']} {it['apiVersion']}" for it in docs) for docs in (plain, found)]
    assert kinds[0] == kinds[1]
    assert "evil" not in keys(list(found))


@pytest.mark.parametrize("section", [*CONFIGS, "telemetry"])
def test_every_option_is_a_value_or_said_by_the_chart(section):
    known = {each.name for each in options_of(CONFIGS.get(section, TelemetryConfig))}
    options = set(SCHEMA["definitions"][f"{section}Options"]["properties"])
    said = {name for case in CASES for name in settings(rendered(case)).get(section, {})}
    untold = {"metrics"} if section == "telemetry" else {"store_password", "advertised_address"}
    assert options <= known
    assert known - options - said <= untold


def test_every_value_says_what_it_is_in_a_sentence():
    found = values(FILE.read_text())
    assert len(found) > 200
    assert [value.path for value in found if not value.text.endswith(".")] == []


def test_the_roles_have_one_shape_but_for_ports_the_key_of_the_front_and_the_place_of_drafts():
    paths = {name: set() for name in TWINS}
    for value in values(FILE.read_text()):
        role, _, path = value.path.partition(".")
        if role in paths and not path.startswith(("ports.", "token.", "placement")):
            paths[role].add(path)
    assert all(paths[name] == paths["router"] for name in TWINS)
