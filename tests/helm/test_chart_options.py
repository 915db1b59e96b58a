"""What the chart tells the services is what they can be told: file, flags and variables."""

import re

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
    named,
    of_kind,
    rendered,
    secret_texts,
    service_pods,
    settings,
    with_values,
)
from support.network.certificates import certificates
from support.network.key_files import key, write_keys

MOUNTED = "/etc/slipstream/"
FROM_THE_POD = {"status.podIP": "10.1.2.3", "metadata.name": "pod-0", "spec.nodeName": "node-0"}
REFERENCE = re.compile(r"\$\((\w+)\)")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """Files where pods have them, with what belongs into them."""
    folder = tmp_path_factory.mktemp("etc")
    made = certificates(folder / "made")
    for name in ("tls", "redis-cert"):
        (folder / name).mkdir()
        (folder / name / "tls.crt").write_bytes(made.cert("router").read_bytes())
        (folder / name / "tls.key").write_bytes(made.key("router").read_bytes())
        (folder / name / "tls.key").chmod(0o600)
    for name in ("tls", "redis-ca"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "ca.crt").write_bytes(made.ca.read_bytes())
    (folder / "redis").mkdir()
    (folder / "redis/password").write_text("a password\n")
    (folder / "token").mkdir()
    (folder / "token/token").write_text("a token\n")
    (folder / "keys").mkdir()
    write_keys(folder / "keys/keys.toml", key("alice", "a token"))
    return folder


def file_of(documents, pod, folder, target):
    """The file of options that a pod is told of, with paths of this machine."""
    args = pod.main["args"]
    path = args[args.index("--config") + 1]
    mount = next(at for at in pod.main["volumeMounts"] if path.startswith(f"{at['mountPath']}/"))
    volume = next(at for at in pod.spec["volumes"] if at["name"] == mount["name"])
    data = named(documents, "ConfigMap", volume["configMap"]["name"])["data"]
    text = data[path.removeprefix(f"{mount['mountPath']}/")]
    target.write_text(text.replace(MOUNTED, f"{folder}/"))
    return target


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
        elif "value" in at:
            found[at["name"]] = REFERENCE.sub(lambda name: found[name[1]], at["value"])
    return found


def told(documents, pod, folder, scratch):
    """The options of a pod's service and of its telemetry, as it would read them."""
    file = file_of(documents, pod, folder, scratch / f"{pod.role}.toml")
    classes = [CONFIGS[pod.role], TelemetryConfig]
    (own, shared), named_file = parse_flags(classes, pod.main["args"], prog=pod.role, doc="")
    assert named_file is not None
    env = environment(pod)
    return (
        load_config(classes[0], section=pod.role, file=file, env=env, flags=own),
        load_config(classes[1], section=SECTION, file=file, env=env, flags=shared),
    )


def configs_of(documents, folder, scratch):
    """The options of each service, by its role."""
    pods = service_pods(documents)
    return {pod.role: told(documents, pod, folder, scratch)[0] for pod in pods}


def test_every_service_takes_what_it_is_told(documents, mounted, tmp_path):
    for pod in service_pods(documents):
        config, telemetry = told(documents, pod, mounted, tmp_path)
        if pod.role == "http":
            assert config.host_and_port() == ("0.0.0.0", pod.ports["http"])
        else:
            assert config.listen.address.endswith(f":{pod.ports['grpc']}")
            assert config.listen.health_address.endswith(f":{pod.ports['health']}")
        assert telemetry.metrics_place() == ("0.0.0.0", pod.ports["metrics"])
        assert telemetry.log_format == "json"


def test_engines_announce_the_address_of_their_own_pod(documents, mounted, tmp_path):
    for pod in service_pods(documents):
        if pod.role in ("draft", "target"):
            config, _ = told(documents, pod, mounted, tmp_path)
            assert config.replica.advertised_address == f"10.1.2.3:{pod.ports['grpc']}"


def test_drafts_may_read_from_targets_beside_them_and_no_other_port(documents, mounted, tmp_path):
    configs = configs_of(documents, mounted, tmp_path)
    if "draft" in configs and "target" in configs:
        sources, address = configs["draft"].sources(), configs["target"].replica.advertised_address
        sources.check(address)
        with pytest.raises(PermissionDenied):
            sources.check(f"{address.rpartition(':')[0]}:6379")


def test_every_variable_of_ours_is_one_that_is_read(documents):
    free = {"SLIPSTREAM_CACHE", "SLIPSTREAM_OFFLINE", "SLIPSTREAM_TOKEN"}
    for pod in service_pods(documents):
        known = {
            f"SLIPSTREAM_{section}_{at.name}".upper()
            for section, cls in ((pod.role, CONFIGS[pod.role]), (SECTION, TelemetryConfig))
            for at in options_of(cls)
        }
        for container in pod.containers:
            names = {at["name"] for at in container.get("env", ())}
            ours = {name for name in names if name.startswith("SLIPSTREAM_")}
            assert ours <= known | free, pod.owner


def test_services_agree_with_each_other(documents):
    """On the model, on Redis, and on names under which replicas announce themselves."""
    tables = settings(documents)
    if "draft" in tables:
        assert tables["draft"]["target_model"] == tables["target"]["model"]
    for option in ("store_url", "store_prefix"):
        assert len({tables[role].get(option) for role in ROLES if role in tables}) == 1
    if tables["router"]["targets"] == ["registry:"]:
        assert tables["router"]["store_url"]


def test_all_hops_are_tls_and_each_side_knows_whom_to_expect(mounted, tmp_path):
    for case in ("tls", "tls-secrets"):
        configs = configs_of(rendered(case), mounted, tmp_path)
        for config in (configs[role] for role in ROLES):
            assert config.tls.cert and config.tls.key
            assert config.store.url.startswith("rediss://") and config.store.ca
        assert configs["target"].tls.client_ca and configs["draft"].tls.client_ca
        assert configs["router"].peer.ca and configs["draft"].peer.ca
        names = configs["target"].replica.tls_client_names
        assert names and configs["target"].tls_draft_names
        assert set(names).isdisjoint(configs["target"].tls_draft_names)
        clients = configs["router"].tls.client_ca
        assert bool(clients) is (case == "tls")


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


def test_the_front_sends_keys_by_tls_and_in_the_clear_only_where_there_are_none(mounted, tmp_path):
    fronts = {}
    for case in ("tls", "http"):
        documents = rendered(case)
        (pod,) = (at for at in service_pods(documents) if at.role == "http")
        fronts[case], _ = told(documents, pod, mounted, tmp_path)
    encrypted, plain = fronts["tls"], fronts["http"]
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


@pytest.mark.parametrize(
    ("role", "option", "value"),
    [
        ("router", "max_requests", 7),
        ("router", "store_down", "refuse"),
        ("router", "max_message_bytes", 4194304),
        ("draft", "kv_encoding", "int8"),
        ("target", "pin_threads", True),
        ("target", "pin_threads", False),
        ("target", "max_parked_bytes", 107374182400),
        ("target", "max_park_ttl_s", 1e-05),
    ],
)
def test_an_option_reaches_its_service_with_its_value(role, option, value, mounted, tmp_path):
    documents = with_values({f"{role}.config.{option}": value})
    (pod,) = (at for at in service_pods(documents) if at.role == role)
    config, _ = told(documents, pod, mounted, tmp_path)
    (found,) = (at for at in options_of(type(config)) if at.name == option)
    assert found.value_in(config) == value


def test_telemetry_is_told_alike(mounted, tmp_path):
    values = {
        "telemetry.logLevel": "debug",
        "telemetry.traceRatio": 0,
        "telemetry.otlp": {"endpoint": "https://collector:4318", "protocol": "http"},
        "telemetry.config.trace_rounds": 3,
    }
    documents = with_values(values)
    for pod in service_pods(documents):
        _, telemetry = told(documents, pod, mounted, tmp_path)
        assert (telemetry.log_level, telemetry.trace_ratio) == ("debug", 0)
        assert (telemetry.traces, telemetry.metrics) == (("otlp-http",), ())
        assert telemetry.trace_rounds == 3


def test_flags_and_variables_that_operators_add_are_taken(mounted, tmp_path):
    values = {
        "router.extraArgs": ["--max-requests", "9"],
        "target.extraEnv": [{"name": "SLIPSTREAM_TARGET_MAX_SESSIONS", "value": "11"}],
    }
    configs = configs_of(with_values(values), mounted, tmp_path)
    assert configs["router"].max_requests == 9
    assert configs["target"].sessions.max_sessions == 11
