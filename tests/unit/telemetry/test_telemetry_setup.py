"""What a service can be told about telemetry, and that it then speaks so, and ends."""

import json
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass

import pytest
from opentelemetry import trace
from prometheus_client.parser import text_string_to_metric_families

from slipstream import __version__
from slipstream.config import parse_flags
from slipstream.core.errors import InternalError, InvalidRequest
from slipstream.options import option, options_of
from slipstream.rpc.process import run_service
from slipstream.telemetry import catalog
from slipstream.telemetry.config import TelemetryConfig
from slipstream.telemetry.request_span import RequestSpan
from slipstream.telemetry.setup import telemetry
from slipstream.telemetry.spans import Carrier
from slipstream_draft.config import DraftConfig
from slipstream_router.config import RouterConfig
from slipstream_target.config import TargetConfig
from support.network.ports import free_port

SAMPLED = Carrier("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
BAD = [
    ({"traces": ("zipkin",)}, "traces is 'zipkin', but must be one of otlp, otlp-http, file:"),
    ({"traces": ("otlp", "file:")}, "traces is 'file:', but must be one of .*file:DIRECTORY"),
    ({"metrics": ("file:/x",)}, "metrics is 'file:/x', but must be one of otlp, otlp-http"),
    ({"trace_ratio": 1.01}, "trace_ratio is 1.01, but must be from 0 to 1"),
    ({"log_format": "xml"}, "log_format is 'xml', but must be one of text, json"),
    ({"log_level": "INFO"}, "log_level is 'INFO', but must be one of debug, info, warning, error"),
    ({"otlp_endpoint": "collector:4317"}, "otlp_endpoint is 'collector:4317', but must be a URL"),
    ({"otlp_endpoint": "http://c:4317"}, "neither traces nor metrics go to otlp"),
    ({"otlp_endpoint": "http://me:secret@c:4317", "traces": ("otlp",)}, "has credentials in it"),
    ({"traces": ("otlp", "otlp")}, "traces has otlp twice"),
    ({"metrics_address": "::1:80"}, "metrics_address is '::1:80', but must be HOST:PORT"),
    ({"metrics_address": "9464"}, "metrics_address is '9464', but must be HOST:PORT"),
    ({"metrics_address": "host:65536"}, "must be HOST:PORT"),
    ({"metrics_address": "host:-1"}, "must be HOST:PORT"),
]


@pytest.mark.parametrize(("options", "reason"), BAD)
def test_what_makes_no_sense_is_refused_in_one_sentence(options, reason):
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        TelemetryConfig(**options)
    assert "\n" not in str(refusal.value)


def test_nothing_leaves_a_service_by_default():
    config = TelemetryConfig()
    assert (config.traces, config.metrics, config.metrics_place()) == ((), (), None)
    with telemetry(config, "router") as listening:
        assert not listening.instruments.are_exported
        assert not RequestSpan(listening, "request", SAMPLED, {}).is_traced


@pytest.mark.parametrize("options", [TargetConfig, DraftConfig, RouterConfig])
def test_no_flag_means_two_things_and_an_unknown_one_names_all_there_are(options):
    known = [
        at.flag for cls in (options, TelemetryConfig) for at in options_of(cls) if not at.is_secret
    ]
    assert len(set(known)) == len(known)
    with pytest.raises(InvalidRequest) as refusal:
        parse_flags([options, TelemetryConfig], ["--colour", "blue"], prog="p", doc="")
    assert str(refusal.value) == (
        f"p has no '--colour'; there are {', '.join(['--config', *known])}"
    )


def spans_of(directory):
    """Every span in the file of a router: its name, and its resource."""
    lines = (directory / "router.jsonl").read_text().splitlines()
    groups = [group for line in lines for group in json.loads(line)["resourceSpans"]]
    return [
        (span["name"], {at["key"]: at["value"] for at in group["resource"]["attributes"]})
        for group in groups
        for scope in group["scopeSpans"]
        for span in scope["spans"]
    ]


def test_spans_are_in_the_file_when_a_process_ends_however_often_it_begins(tmp_path):
    config = TelemetryConfig(traces=(f"file:{tmp_path}/traces",), trace_ratio=1.0)
    for name in ("first", "second"):
        with telemetry(config, "router") as listening:
            RequestSpan(listening, name, None, {}).end()
    (first, about), (second, _) = spans_of(tmp_path / "traces")
    assert (first, second) == ("first", "second")
    assert about["service.name"] == {"stringValue": "slipstream-router"}
    assert about["service.version"] == {"stringValue": __version__}
    assert about["service.instance.id"] == {"stringValue": f"{socket.gethostname()}-{os.getpid()}"}


def page(port):
    """What Prometheus reads: values by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_page_for_prometheus_is_there_for_as_long_as_the_process_and_again_after_it():
    port, threads = free_port(), threading.active_count()
    config = TelemetryConfig(metrics_address=f"127.0.0.1:{port}")
    for total in (3, 5):
        with telemetry(config, "router") as listening:
            assert listening.instruments.are_exported
            listening.instruments.total(catalog.TOKENS_FINAL, total)
            assert page(port)["slipstream_tokens_final_total"] == total
        with pytest.raises(urllib.error.URLError):
            page(port)
    assert threading.active_count() == threads


OTLP = "opentelemetry.exporter.otlp.proto"


@pytest.mark.parametrize(
    ("options", "module", "named"),
    [
        ({"traces": ("otlp",)}, f"{OTLP}.grpc.trace_exporter", "otlp"),
        ({"metrics": ("otlp-http",)}, f"{OTLP}.http.metric_exporter", "otlp-http"),
        ({"metrics_address": "[::1]:0"}, "opentelemetry.exporter.prometheus", "metrics_address"),
    ],
)
def test_a_missing_exporter_is_named_with_what_installs_it(monkeypatch, options, module, named):
    monkeypatch.setitem(sys.modules, module, None)
    reason = rf"{named} needs {module}: pip install 'slipstream\[serve\]'"
    config = TelemetryConfig(**options)
    with pytest.raises(InvalidRequest, match=reason), telemetry(config, "router"):
        raise AssertionError("it was there")


def test_every_exporter_is_made_and_ends_and_nothing_global_is_set(capfd):
    before = trace.get_tracer_provider()
    with telemetry(
        TelemetryConfig(traces=("otlp", "otlp-http"), trace_ratio=0.0), "router"
    ) as made:
        RequestSpan(made, "unsampled", None, {}).end()
    assert trace.get_tracer_provider() is before
    assert capfd.readouterr().out == "", "a service says there where it serves"


@dataclass(frozen=True, slots=True)
class Options:
    """What the service of these tests can be told."""

    size: int = option(3, "A size.")


def test_a_service_has_telemetry_and_all_of_it_is_exported_also_when_it_fails(tmp_path, capsys):
    async def serve(options, listening):
        assert listening.trace_rounds == 2
        RequestSpan(listening, "request", None, {}).end()
        raise InternalError("it broke")

    argv = ["--traces", f"file:{tmp_path}", "--trace-ratio", "1", "--trace-rounds", "2"]
    assert run_service("router", Options, serve, argv=argv, doc="") == 1
    assert "error: it broke\n" in capsys.readouterr().err
    assert [name for name, _ in spans_of(tmp_path)] == ["request"]


def test_a_service_whose_address_for_metrics_is_taken_does_not_serve(capsys):
    async def serve(options, listening):
        raise AssertionError("it was served")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        argv = ["--metrics-address", f"127.0.0.1:{taken.getsockname()[1]}"]
        assert run_service("router", Options, serve, argv=argv, doc="") == 1
    assert "can't be had for metrics" in capsys.readouterr().err
