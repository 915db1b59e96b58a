"""Proxies of the environment: none leads to this machine, and a refusal names the variable."""

import itertools

import grpc
import pytest

from slipstream.client import Client
from slipstream.config import are_local, grpc_proxy
from slipstream.core.errors import Unavailable
from slipstream.rpc.channel import ChannelOptions, connect_sync
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.status import error_from
from slipstream.telemetry.config import TelemetryConfig
from slipstream.telemetry.request_span import RequestSpan
from slipstream.telemetry.setup import _is_local, _session, telemetry
from support.network.bad_routers import Failing, register
from support.services.background import served
from support.telemetry.otlp_collector import collector

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
NOWHERE = "http://127.0.0.1:9"
HINT = r"127\.0\.0\.1:9: .* \(gRPC connects through the proxy that {} names\)$"
LOCAL = ["127.0.0.1:{}", "127.9.8.7:{}", "localhost:{}", "LOCALHOST:{}", "ipv4:127.0.0.1:{}"]
LOCAL += ["dns:localhost:{}", "dns:///localhost:{}", "127.0.0.1:{},127.0.0.2:{}", "[::1]:{}"]
ELSEWHERE = ["192.0.2.1:5", "dns:///nothing.invalid:5", "10.0.0.1:5,10.0.0.2:5"]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in (*VARIABLES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def port():
    """The port of a router at all addresses of this machine."""
    servicer = register(Failing(Unavailable("it answers")))
    with served(servicer, ServerOptions("[::]:0")) as address:
        yield address.rpartition(":")[2]


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("address", LOCAL)
def test_no_proxy_leads_to_this_machine(monkeypatch, port, variable, address):
    monkeypatch.setenv(variable, NOWHERE)
    at = address.replace("{}", port)
    assert are_local(at)
    with (
        Client(at, retries=False, timeout_s=20) as client,
        pytest.raises(Unavailable, match="it answers"),
    ):
        client.generate("hello")


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("address", ELSEWHERE)
def test_a_refused_connection_names_the_variable_of_its_proxy(monkeypatch, variable, address):
    monkeypatch.setenv(variable, NOWHERE)
    assert not are_local(address)
    with (
        Client(address, retries=False, tls=False, timeout_s=20) as client,
        pytest.raises(Unavailable, match=HINT.format(variable)),
    ):
        client.models()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, None),
        ({"HTTP_PROXY": NOWHERE}, None),
        ({"grpc_proxy": "", "http_proxy": NOWHERE}, None),
        ({"http_proxy": NOWHERE, "https_proxy": "http://p:8"}, ("https_proxy", 8)),
        ({"http_proxy": "proxy:7"}, ("http_proxy", 7)),
        ({"http_proxy": "http://proxy"}, ("http_proxy", 80)),
        ({"http_proxy": "http://user:word@[::1]:6/"}, ("http_proxy", 6)),
        ({"http_proxy": "http://proxy:x"}, None),
    ],
)
def test_the_proxy_is_that_which_grpc_takes(monkeypatch, values, found):
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert grpc_proxy() == found


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "collector.invalid"])
@pytest.mark.parametrize("exporter", ["otlp", "otlp-http"])
def test_telemetry_to_this_machine_goes_through_no_proxy(monkeypatch, exporter, host, variable):
    """Whether the endpoint is an option or a variable of OpenTelemetry's."""
    monkeypatch.setenv(variable, NOWHERE)
    is_local = "invalid" not in host
    for signal, endpoint in itertools.product(("traces", "metrics"), (f"http://{host}:4317", None)):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{host}:4317")
        config = TelemetryConfig(**{signal: (exporter,), "otlp_endpoint": endpoint})
        assert _is_local(config, signal) == is_local
        assert _session(is_local=is_local).trust_env == (not is_local)


def test_spans_arrive_at_a_collector_of_this_machine_whatever_the_proxy(monkeypatch):
    monkeypatch.setenv("grpc_proxy", NOWHERE)
    with collector() as found:
        config = TelemetryConfig(traces=("otlp",), otlp_endpoint=found.url, trace_ratio=1.0)
        with telemetry(config, "router") as listening:
            RequestSpan(listening, "arrives", None, {}).end()
        assert [span.name for span in found.until(lambda: found.spans)] == ["arrives"]


def test_an_error_of_another_address_names_no_variable(monkeypatch):
    monkeypatch.setenv("http_proxy", NOWHERE)
    channel = connect_sync("127.0.0.1:1", ChannelOptions())
    with channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/a/b")(b"", timeout=20)
    assert "127.0.0.1:1: " in str(error_from(refused.value))
    assert "proxy" not in str(error_from(refused.value))
