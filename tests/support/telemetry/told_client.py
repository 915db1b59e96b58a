"""Clients of an application with telemetry of its own, and what it gets to see of them."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipstream.client.connection import connection
from slipstream.client.remote import RemoteBackend
from slipstream.telemetry.sdk_spans import SdkTelemetry


class Told:
    """What an application with telemetry of its own gets to see."""

    def __init__(self, **options):
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = SdkTelemetry(self.tracers.get_tracer("app"))

    def spans(self):
        """Those that have ended since they were asked for, as dictionaries."""
        spans = self._spans.get_finished_spans()
        self._spans.clear()
        return spans

    def span(self):
        (span,) = self.spans()
        return span


def remote(address, *, is_blocking=True):
    to = connection(address, token=None, tls=None, retries=True)
    return RemoteBackend(to, 60, to.channel(is_blocking=is_blocking))


def async_remote(address):
    return remote(address, is_blocking=False)
