"""What the chart tells the services is what they can be told: file, flags and variables."""

import re
import shutil

import pytest

from slipstream.config import load_config, parse_flags
from slipstream.core.errors import PermissionDenied
from slipstream.options import options_of
from slipstream.state.access import read_keys
from slipstream.telemetry.config import SECTION, TelemetryConfig
from support.deployment.charts import (
    CONFIGS,
    NAMESPACE,
    ROLES,
    models_of,
    named,
    of_kind,
    rendered,
    resident_draft,
    secret_texts,
    service_pods,
    settings,
    with_values,
)
from support.network.certificates import certificates
from support.network.key_files import key, write_keys

FROM_THE_POD = {"status.podIP": "10.1.2.3", "metadata.name": "pod-0", "spec.nodeName": "node-0"}
REFERENCE = re.compile(r"\$\((\w+)\)")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """Files where pods have them, with what belongs into them."""
    folder = tmp_path_factory.mktemp("etc")
    made = certificates(folder / "made")
    for name in ("tls", "draft-tls", "redis-cert", "redis-ca", "redis", "token", "keys"):
        (folder / name).mkdir()
    for name in ("tls", "draft-tls", "redis-cert"):
        shutil.copy(made.cert("router"), folder / name / "tls.crt")
        shutil.copy(made.key("router"), folder / name / "tls.key")
    for name in ("tls", "draft-tls", "redis-ca"):
        shutil.copy(made.ca, folder / name / "ca.crt")
    (folder / "redis/password").write_text("a password\n")
    (folder / "token/token").write_text("a token\n")
    write_keys(folder / "keys/keys.toml", key("alice", "a token"))
    return folder


def environment(pod):
    """The variables that a pod's container has, as Kubernetes fills them in."""
    found = {}
    for at in pod.main["env"]:
        source = at.get("valueFrom", {})
        if "fieldRef" in source:
            found[at["name"]] = FROM_THE_POD[source["fieldRef"]["fieldPath"]]
        elif "resourceFieldRef" in source:
            assert source["resourceFieldRef"]["resource"] in ("limits.cpu", "requests.cpu")
            found[at["name"]] = "2"
        else:  # without a value it is from a secret
            value = at.get("value", "a secret")
            found[at["name"]] = REFERENCE.sub(lambda name: found[name[1]], value)
    return found


@pytest.fixture
def read(mounted, tmp_path):
    """A function that returns the options of each service and of its telemetry, as it reads them.

    The file that a pod is told of has paths of this machine.
    """

    def options(documents, pod):
        args, file = pod.main["args"], tmp_path / f"{pod.role}.toml"
        path = args[args.index("--config") + 1]
        mount = next(
            it for it in pod.main["volumeMounts"] if path.startswith(f"{it['mountPath']}/")
        )
        volume = next(it for it in pod.spec["volumes"] if it["name"] == mount["name"])
        data = named(documents, "ConfigMap", volume["configMap"]["name"])["data"]
        text = data[path.removeprefix(f"{mount['mountPath']}/")]
        file.write_text(text.replace("/etc/slipstream/", f"{mounted}/"))
        classes = (CONFIGS[pod.role], TelemetryConfig)
        flags, _ = parse_flags(classes, args, prog=pod.role, doc="")
        sources = {"file": file, "env": environment(pod)}
        return [
            load_config(cls, section=section, flags=given, **sources)
            for cls, section, given in zip(classes, (pod.role, SECTION), flags, strict=True)
        ]

    return lambda documents, model=None: {
        pod.role: options(documents, pod) for pod in services(documents, model)
    }


def services(documents, model=None):
    """Return pods of services, of all models or one, and the draft where it is in its target's."""
    found = [*service_pods(documents), *filter(None, [resident_draft(documents)])]
    return [pod for pod in found if model is None or pod.model in (None, model)]


def test_every_service_takes_its_options(documents, read):
    """Engines announce the address of their pod; drafts read from targets beside them alone."""
    ports = {pod.role: pod.ports for pod in services(documents)}
    pairs = [(role, it) for at in models_of(documents) for role, it in read(documents, at).items()]
    found = dict(pairs)
    for role, (config, telemetry) in pairs:
        if role == "http":
            assert config.host_and_port() == ("0.0.0.0", ports[role]["http"])
        else:
            assert config.listen.address.endswith(f":{ports[role]['grpc']}")
            health = ports[role].get("health")
            assert health is None or config.listen.health_address.endswith(f":{health}")
        if role in ("draft", "target"):
            assert config.replica.advertised_address == f"10.1.2.3:{ports[role]['grpc']}"
        assert telemetry.metrics_place() == ("0.0.0.0", ports[role]["metrics"])
        assert telemetry.log_format == "json"
    if "draft" in found and "target" in found:
        sources = found["draft"][0].sources()
        sources.check(found["target"][0].replica.advertised_address)
        with pytest.raises(PermissionDenied):
            sources.check("10.1.2.3:6379")


def test_services_agree_with_each_other(documents):
    """On the model, on Redis, and on names under which replicas announce themselves."""
    for tables in models_of(documents).values():
        if "draft" in tables:
            assert tables["draft"]["target_model"] == tables["target"]["model"]
        for option in ("store_url", "store_prefix"):
            assert len({tables[role].get(option) for role in ROLES if role in tables}) == 1
        if tables["router"]["targets"] == ["registry:"]:
            assert tables["router"]["store_url"]


def test_all_hops_are_tls_and_each_side_verifies_the_other(read):
    ca = {"enabled": True, "issuerRef": {"name": "ca"}}
    shared = with_values({"tls.enabled": True, "tls.certManager": ca}, "shared-gpu")
    cases = {case: rendered(case) for case in ("tls", "tls-secrets", "production")}
    for case, documents in {**cases, "shared-gpu": shared}.items():
        configs = {role: config for role, (config, _) in read(documents).items()}
        assert (configs["draft"].tls.cert == configs["target"].tls.cert) is (documents != shared)
        for config in (configs[role] for role in ROLES):
            assert config.tls.cert and config.tls.key
            assert config.store.url.startswith("rediss://") and config.store.ca
            assert config.store.user == "slipstream"
        assert configs["target"].tls.client_ca and configs["draft"].tls.client_ca
        assert configs["router"].peer.ca and configs["draft"].peer.ca
        names = configs["target"].replica.tls_client_names
        assert names and configs["target"].tls_draft_names
        assert set(names).isdisjoint(configs["target"].tls_draft_names)
        assert bool(configs["router"].tls.client_ca) is (case != "tls-secrets")
        assert configs["router"].key_file or case != "production"


def test_certificates_carry_the_names_that_others_look_for():
    documents = rendered("tls")
    names = {
        at["metadata"]["labels"]["app.kubernetes.io/component"]: at["spec"]["dnsNames"]
        for at in of_kind(documents, "Certificate")
    }
    tables = settings(documents)
    assert set(tables["target"]["tls_client_names"]) <= set(names["router"])
    assert set(tables["target"]["tls_draft_names"]) <= set(names["draft"])
    assert tables["router"]["peer_target_name"] in names["target"]
    assert tables["router"]["peer_draft_name"] in names["draft"]
    assert tables["draft"]["peer_target_name"] in names["target"]
    assert tables["http"]["peer_router_name"] in names["router"]
    assert {"api.example.com", f"demo-slipstream-http.{NAMESPACE}.svc"} <= set(names["http"])
    host = tables["router"]["store_url"].removeprefix("rediss://").partition(":")[0]
    assert host in names["redis"]
    assert "llm.example.com" in names["router"]
    assert f"demo-slipstream-router.{NAMESPACE}.svc" in names["router"]


def test_certificates_are_good_for_what_they_are_used_for():
    for at in of_kind(rendered("tls"), "Certificate"):
        component = at["metadata"]["labels"]["app.kubernetes.io/component"]
        usages = set(at["spec"]["usages"])
        assert component in {"target", "redis"} or "client auth" in usages
        assert component == "client" or "server auth" in usages
        assert at["spec"]["issuerRef"]["name"] == "inference-ca"


def test_the_front_sends_keys_by_tls_and_in_the_clear_only_where_there_are_none(read):
    (encrypted, _), (plain, _) = (read(rendered(case))["http"] for case in ("tls", "http"))
    assert encrypted.to_router() and encrypted.tls() and not encrypted.plaintext_tokens
    assert encrypted.token() == "a token"
    assert plain.plaintext_tokens and plain.token_file is None
    routers = settings(rendered("http"))["router"]
    assert "key_file" not in routers and plain.timeout_s == 600
    assert plain.router == "dns:///demo-slipstream-router-headless.serving.svc:50051"


def test_keys_that_are_given_as_values_are_a_file_that_routers_read(tmp_path):
    secrets = [at for at in of_kind(rendered("tls"), "Secret") if "keys.toml" in secret_texts(at)]
    (secret,) = secrets
    path = tmp_path / "keys.toml"
    path.write_text(secret_texts(secret)["keys.toml"])
    path.chmod(0o600)
    (entry,) = read_keys(path)
    assert entry.name == "alice" and entry.limits.max_concurrent == 8


GIVEN = {
    "router": {"store_down": "refuse", "max_message_bytes": 4194304},
    "draft": {"kv_encoding": "int8", "pin_threads": False},
    "target": {"pin_threads": True, "max_parked_bytes": 107374182400, "max_park_ttl_s": 1e-05},
}
"""Options as values of the chart."""


def test_options_flags_variables_and_telemetry_reach_their_services(read):
    values = {f"{role}.config": options for role, options in GIVEN.items()} | {
        "router.extraArgs": ["--max-requests", "9"],
        "target.extraEnv": [{"name": "SLIPSTREAM_TARGET_MAX_SESSIONS", "value": "11"}],
        "telemetry.logLevel": "debug",
        "telemetry.traceRatio": 0,
        "telemetry.otlp": {"endpoint": "https://collector:4318", "protocol": "http"},
        "telemetry.config.trace_rounds": 3,
    }
    found = read(with_values(values))
    for role, options in GIVEN.items():
        config, telemetry = found[role]
        known = {option.name: option.value_in(config) for option in options_of(type(config))}
        assert {name: known[name] for name in options} == options
        assert (telemetry.log_level, telemetry.trace_ratio) == ("debug", 0)
        assert (telemetry.traces, telemetry.metrics) == (("otlp-http",), ())
        assert telemetry.trace_rounds == 3
    assert found["router"][0].max_requests == 9
    assert found["target"][0].sessions.max_sessions == 11
