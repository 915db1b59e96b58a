"""A recorder of all telemetry."""

from contextlib import contextmanager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipstream.telemetry.metric import Instruments, Telemetry
from slipstream.telemetry.spans import carried


class Listener:
    """Records all that is sent to its `telemetry`."""

    def __init__(self):
        self._exporter = InMemorySpanExporter()
        self._tracers = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], resource=Resource({}), shutdown_on_exit=False)
        self.tracer = self._tracers.get_tracer("test")
        self.telemetry = Telemetry(self.tracer, Instruments(self._meters.get_meter("test")))

    @contextmanager
    def caller(self):
        """Yield the trace context of a caller whose span lasts as long."""
        with self.tracer.start_as_current_span("caller") as span:
            yield carried(span)

    def spans(self, name=None):
        """Return the ended spans without the callers'; only those of a name, if one is given."""
        ended = [span for span in self._exporter.get_finished_spans() if span.name != "caller"]
        return [span for span in ended if name in (None, span.name)]

    def span(self, name):
        [span] = self.spans(name)
        return span

    def points(self, metric):
        known = data_points(self._reader)
        told = [point for one, point in known if one.name == metric.name]
        return {tuple(sorted(point.attributes.items())): point for point in told}

    def point(self, metric, **attributes):
        return self.points(metric)[tuple(sorted(attributes.items()))]


def data_points(reader):
    """Each metric with each of its data points."""
    data = reader.get_metrics_data()
    resources = data.resource_metrics if data else ()
    scopes = [scope for resource in resources for scope in resource.scope_metrics]
    metrics = [metric for scope in scopes for metric in scope.metrics]
    return [(metric, point) for metric in metrics for point in metric.data.data_points]


def parent_id(span):
    return None if span.parent is None else span.parent.span_id


def span_id(carrier):
    """The id of the span that a carrier, or a message's trace, is of."""
    return int(carrier.traceparent.split("-")[2], 16)
