"""An OTLP/gRPC receiver that passes on what exporters of this machine send."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


class Received(Protocol):
    """Takes the messages of exporters."""

    def take_spans(self, request: Any) -> None: ...

    def take_metrics(self, request: Any) -> None: ...


@asynccontextmanager
async def receiver(into: Received) -> AsyncIterator[str]:
    """Serve on a free port, and give its URL."""
    server = grpc.aio.server()
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(into), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(into), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, into: Received) -> None:
        self._into = into

    async def Export(self, request: Any, context: object) -> Any:
        self._into.take_spans(request)
        return trace_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, into: Received) -> None:
        self._into = into

    async def Export(self, request: Any, context: object) -> Any:
        self._into.take_metrics(request)
        return metrics_pb2.ExportMetricsServiceResponse()
