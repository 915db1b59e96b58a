"""Telemetry of one process, made from its configuration: exporters, providers, and their end.

The only place that sets up OpenTelemetry's SDK. Nothing global is set, and exporters are loaded
only when they are used.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, Tracer

from slipstream import __version__
from slipstream.config import are_local, otlp_endpoint
from slipstream.core.errors import InvalidRequest, Unavailable
from slipstream.files import path_of
from slipstream.telemetry.config import FILE, OTLP, TelemetryConfig
from slipstream.telemetry.metric import Instruments, Telemetry

_LOG = logging.getLogger("slipstream.telemetry")
SCOPE = "slipstream"
SHUTDOWN_S = 5.0
"""Longest time for exporting what is left when a process ends."""
_FILE_DELAY_MS = 200
"""Export soon to a file: people look into it at once."""

Shutdowns = list[Callable[[], object]]


@contextmanager
def telemetry(config: TelemetryConfig, role: str) -> Iterator[Telemetry]:
    """Export as configured, as a service of this role; at the end, what was not exported yet.

    Raises `InvalidRequest` for an exporter that is not installed, and `Unavailable` when the
    address for Prometheus can't be listened on.
    """
    shutdowns: Shutdowns = []
    try:
        tracer = _tracer(config, role, shutdowns)
        instruments = _instruments(config, role, shutdowns)
        yield Telemetry(tracer, instruments, config.trace_rounds)
    finally:
        _shut_down(shutdowns)


def _shut_down(shutdowns: Shutdowns) -> None:
    """Call each on a thread of its own, and wait for none of them for long: a collector that does
    not answer must not keep a service from ending."""
    threads = [Thread(target=shutdown, daemon=True) for shutdown in shutdowns]
    for thread in threads:
        thread.start()
    until = time.monotonic() + SHUTDOWN_S
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        _LOG.warning("the last spans and metrics are lost: no answer for %g s", SHUTDOWN_S)


def _resource(role: str) -> Resource:
    """Return the process, and what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to it. Its id
    tells replicas on one host apart."""
    about = {
        "service.namespace": SCOPE,
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    known = Resource.create(about)
    if str(known.attributes.get("service.name", "")).startswith("unknown_service"):
        return known.merge(Resource({"service.name": f"{SCOPE}-{role}"}))
    return known


def _tracer(config: TelemetryConfig, role: str, shutdowns: Shutdowns) -> Tracer:
    if not config.traces:
        return NoOpTracer()
    sampler = ParentBased(TraceIdRatioBased(config.trace_ratio))
    provider = TracerProvider(sampler, _resource(role), shutdown_on_exit=False)
    shutdowns.append(provider.shutdown)
    for name in config.traces:
        if name.startswith(FILE):
            from slipstream.telemetry.trace_file import FileSpanExporter

            file = FileSpanExporter(path_of(name.removeprefix(FILE)), role)
            processor = BatchSpanProcessor(file, schedule_delay_millis=_FILE_DELAY_MS)
        else:
            processor = BatchSpanProcessor(
                _otlp_exporter(name, "trace", "OTLPSpanExporter", config)
            )
        provider.add_span_processor(processor)
    return provider.get_tracer(SCOPE, __version__)


def _instruments(config: TelemetryConfig, role: str, shutdowns: Shutdowns) -> Instruments:
    address = config.metrics_place()
    if not config.metrics and address is None:
        return Instruments()
    readers: list[MetricReader] = []
    if address is not None:  # first: the others begin to send when they are made
        readers.append(_prometheus_reader(*address, shutdowns))
    for name in config.metrics:
        exporter = _otlp_exporter(name, "metric", "OTLPMetricExporter", config)
        readers.append(PeriodicExportingMetricReader(exporter, config.metrics_interval_s * 1000))
    provider = MeterProvider(readers, _resource(role), shutdown_on_exit=False)
    shutdowns.append(provider.shutdown)
    return Instruments(provider.get_meter(SCOPE, __version__))


def _otlp_exporter(name: str, kind: str, cls: str, config: TelemetryConfig) -> Any:
    signal, protocol = f"{kind}s", "grpc" if name == OTLP else "http"
    with _installed(name):
        module = import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.{kind}_exporter")
    endpoint, is_local = config.otlp_endpoint, _is_local(config, signal)
    if protocol == "grpc":
        options = (("grpc.enable_http_proxy", 0),) if is_local else ()
        return getattr(module, cls)(endpoint, channel_options=options)
    # Over HTTP each signal has a path of its own there.
    url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"
    return getattr(module, cls)(url, session=_session(is_local=is_local))


def _session(*, is_local: bool) -> Any:
    session = import_module("requests").Session()
    session.trust_env = not is_local
    return session


def _prometheus_reader(host: str, port: int, shutdowns: Shutdowns) -> MetricReader:
    with _installed("metrics_address"):
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, start_http_server
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Unavailable(
            f"the address {host}:{port} can't be had for metrics ({error.strerror})"
        ) from None
    _LOG.info("metrics at http://%s:%d/metrics", host, server.server_port)

    def shut_down() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    shutdowns.append(shut_down)
    return reader


def _is_local(config: TelemetryConfig, signal: str) -> bool:
    """Return whether the collector is on this machine: no proxy leads there."""
    url = config.otlp_endpoint or otlp_endpoint(signal) or "localhost"
    return are_local(f"{urlsplit(url if '//' in url else f'//{url}').hostname}:0")


@contextmanager
def _installed(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidRequest(
            f"{name} needs {error.name}: pip install 'slipstream[serve]'"
        ) from None
