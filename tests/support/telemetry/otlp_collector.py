"""A collector that remembers: spans and metrics of processes, sent as to any backend."""

import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

from slipstream.telemetry.trace_file import otlp_json
from slipstream.telemetry.traces import Span, spans_in
from support.services.background import on_thread

LIMIT_S = 90.0
T = TypeVar("T")


class Collector:
    """Return the received messages so far. For any thread."""

    def __init__(self) -> None:
        self.url = ""
        self._heard = threading.Condition()
        self._spans: list[Span] = []
        self._metrics: dict[str, dict[str, Any]] = defaultdict(dict)

    @property
    def spans(self) -> tuple[Span, ...]:
        with self._heard:
            return tuple(self._spans)

    def metrics(self, service: str) -> dict[str, Any]:
        """The latest of each metric of a service, by name."""
        with self._heard:
            return dict(self._metrics[service])

    def until(self, condition: Callable[[], T]) -> T:
        """Return the value of a condition, once it is true or the time is over."""
        with self._heard:
            self._heard.wait_for(condition, LIMIT_S)
        return condition()

    def take_spans(self, request: Any) -> None:
        with self._heard:
            self._spans += spans_in(otlp_json(request))
            self._heard.notify_all()

    def take_metrics(self, request: Any) -> None:
        with self._heard:
            for resource in request.resource_metrics:
                about = {item.key: item.value for item in resource.resource.attributes}
                held = self._metrics[about["service.name"].string_value]
                for scope in resource.scope_metrics:
                    held |= {metric.name: metric for metric in scope.metrics}
            self._heard.notify_all()


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()
    with on_thread(lambda _: _receiver(found)) as found.url:
        yield found


def traces_of(spans: Sequence[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.trace_id].append(span)
    return dict(found)


@asynccontextmanager
async def _receiver(into: Collector) -> AsyncIterator[str]:
    """Serve on a free port, and give its URL."""
    server = grpc.aio.server()
    trace_grpc.add_TraceServiceServicer_to_server(
        _Exports(into.take_spans, trace_pb2.ExportTraceServiceResponse), server
    )
    metrics_grpc.add_MetricsServiceServicer_to_server(
        _Exports(into.take_metrics, metrics_pb2.ExportMetricsServiceResponse), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


class _Exports:
    """A service of one method, as those of spans and of metrics are."""

    def __init__(self, take: Callable[[Any], None], answer: Callable[[], Any]) -> None:
        self._take, self._answer = take, answer

    async def Export(self, request: Any, context: object) -> Any:
        self._take(request)
        return self._answer()
