"""An OTLP/gRPC receiver that counts what it is sent, and keeps nothing. For measurements."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric


class Received:
    """What has come so far."""

    def __init__(self) -> None:
        self.num_spans = 0
        self.num_points = 0
        """Of metrics, with each set of attributes, each time that they were sent."""
        self._traces: set[bytes] = set()
        self._metrics: set[str] = set()

    @property
    def num_traces(self) -> int:
        """Requests of which there are spans."""
        return len(self._traces)

    @property
    def num_metrics(self) -> int:
        """Names."""
        return len(self._metrics)

    def take_spans(self, request: trace_pb2.ExportTraceServiceRequest) -> None:
        """One message of an exporter."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.num_spans += len(scope.spans)
                self._traces.update(span.trace_id for span in scope.spans)

    def take_metrics(self, request: metrics_pb2.ExportMetricsServiceRequest) -> None:
        """One message of an exporter."""
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.num_points += sum(map(_num_points, scope.metrics))
                self._metrics.update(metric.name for metric in scope.metrics)


@asynccontextmanager
async def receiver(into: Received) -> AsyncIterator[str]:
    """The URL at which exporters of this machine are listened to."""
    server = grpc.aio.server()
    # Both are generated without annotations.
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(into), server)  # type: ignore[no-untyped-call]
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(into), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, into: Received) -> None:
        self._into = into

    async def Export(
        self, request: trace_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_pb2.ExportTraceServiceResponse:
        self._into.take_spans(request)
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, into: Received) -> None:
        self._into = into

    async def Export(
        self, request: metrics_pb2.ExportMetricsServiceRequest, context: object
    ) -> metrics_pb2.ExportMetricsServiceResponse:
        self._into.take_metrics(request)
        return metrics_pb2.ExportMetricsServiceResponse()


def _num_points(metric: Metric) -> int:
    kind = metric.WhichOneof("data")
    return 0 if kind is None else len(getattr(metric, kind).data_points)
