"""Where spans and metrics go: exporters by name. Each is loaded when it is asked for.

Knows what a name means; when anything is exported is `setup.py`'s part.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import InvalidRequest, Unavailable
from slipstream.telemetry.config import CONSOLE, FILE, OTLP, TelemetryConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace.export import SpanExporter

_LOG = logging.getLogger("slipstream.telemetry")


def span_exporter(name: str, config: TelemetryConfig, role: str) -> "SpanExporter":
    """Where spans of a role go. Raises `InvalidRequest` for what is not installed."""
    if name.startswith(FILE):
        from slipstream.telemetry.trace_file import FileSpanExporter

        return FileSpanExporter(config.directory(name), role)
    if name == CONSOLE:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    with _installed(name):
        if name == OTLP:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter(config.otlp_endpoint)
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

        return http.OTLPSpanExporter(_url(config, "traces"))


def metric_reader(name: str, config: TelemetryConfig) -> "MetricReader":
    """What sends metrics. Raises `InvalidRequest` for what is not installed."""
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return PeriodicExportingMetricReader(
        _metric_exporter(name, config), config.metrics_interval_s * 1000
    )


def prometheus_page(host: str, port: int) -> "tuple[MetricReader, Callable[[], None]]":
    """What Prometheus reads, and what ends it.

    Raises `InvalidRequest` where that is not installed, `Unavailable` when the address is taken.
    """
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

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return reader, end


def _metric_exporter(name: str, config: TelemetryConfig) -> Any:
    if name == CONSOLE:
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter(out=sys.stderr)
    with _installed(name):
        if name == OTLP:
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

            return OTLPMetricExporter(config.otlp_endpoint)
        from opentelemetry.exporter.otlp.proto.http import metric_exporter as http

        return http.OTLPMetricExporter(_url(config, "metrics"))


def _url(config: TelemetryConfig, signal: str) -> str | None:
    """The endpoint is that of a collector; over HTTP each signal has a path of its own there."""
    endpoint = config.otlp_endpoint
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"


@contextmanager
def _installed(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidRequest(
            f"{name} needs {error.name}: pip install 'slipstream[serve]'"
        ) from None
