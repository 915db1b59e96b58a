"""Telemetry of one process, out of its configuration: providers, and their end.

The only place that sets up OpenTelemetry's SDK, and nothing global is set:
whoever speaks is given a `Telemetry`.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, Tracer

from slipstream.telemetry.config import FILE, TelemetryConfig
from slipstream.telemetry.exporters import metric_reader, prometheus_page, span_exporter
from slipstream.telemetry.metric import Instruments, no_instruments
from slipstream.telemetry.telemetry import Telemetry

_LOG = logging.getLogger("slipstream.telemetry")
SCOPE = "slipstream"
Ends = list[Callable[[], object]]
LAST_WORDS_S = 5.0
"""Longest time for what is left to tell when a process ends."""
_FILE_DELAY_MS = 200
"""Who looks at a file looks at it at once."""


@dataclass(frozen=True, slots=True)
class Process:
    """Who speaks; the process id tells replicas on one host apart."""

    role: str
    version: str
    pid: int


@contextmanager
def telemetry(config: TelemetryConfig, process: Process) -> Iterator[Telemetry]:
    """Speak as configured; what was not sent by the end is sent then.

    Raises `InvalidRequest` for an exporter that is not installed, and `Unavailable` when the
    address for Prometheus can't be had.
    """
    with _ended_at_once() as ends:
        tracer = _tracer(config, process, ends)
        instruments = _instruments(config, process, ends)
        yield Telemetry(tracer, instruments, config.bounds(), config.trace_content)


@contextmanager
def _ended_at_once() -> Iterator[Ends]:
    """What is to be called in the end, each on a thread of its own, and none for long: a collector
    that does not answer must not keep a service from ending."""
    ends: Ends = []
    try:
        yield ends
    finally:
        threads = [Thread(target=end, daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        until = time.monotonic() + LAST_WORDS_S
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        if any(thread.is_alive() for thread in threads):
            _LOG.warning(
                "what was to be told last is given up: nobody took it for %g s", LAST_WORDS_S
            )


def _resource(process: Process) -> Resource:
    """Who speaks, and what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say beside it."""
    about = {
        "service.namespace": SCOPE,
        "service.version": process.version,
        "service.instance.id": f"{socket.gethostname()}-{process.pid}",
    }
    known = Resource.create(about)
    if str(known.attributes.get("service.name", "")).startswith("unknown_service"):
        return known.merge(Resource({"service.name": f"{SCOPE}-{process.role}"}))
    return known


def _tracer(config: TelemetryConfig, process: Process, ends: Ends) -> Tracer:
    if not config.traces:
        return NoOpTracer()
    sampler = ParentBased(TraceIdRatioBased(config.trace_ratio))
    provider = TracerProvider(sampler, _resource(process), shutdown_on_exit=False)
    ends.append(provider.shutdown)
    for name in config.traces:
        exporter = span_exporter(name, config, process.role)
        delay_ms = _FILE_DELAY_MS if name.startswith(FILE) else None
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms))
    return provider.get_tracer(SCOPE, process.version)


def _instruments(config: TelemetryConfig, process: Process, ends: Ends) -> Instruments:
    place = config.metrics_place()
    if not config.metrics and place is None:
        return no_instruments()
    readers: list[MetricReader] = []
    if place is not None:  # first: the others begin to send when they are made
        page, end = prometheus_page(*place)
        ends.append(end)
        readers.append(page)
    readers += [metric_reader(name, config) for name in config.metrics]
    provider = MeterProvider(readers, _resource(process), shutdown_on_exit=False)
    ends.append(provider.shutdown)
    return Instruments(provider.get_meter(SCOPE, process.version))
