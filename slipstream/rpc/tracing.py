"""Trace context on the wire, both ways, and what a span says of a call's end."""

import grpc

from slipstream.rpc.v1 import common_pb2
from slipstream.telemetry.carrier import Carrier


def trace_to_pb(carrier: Carrier | None) -> common_pb2.TraceContext | None:
    """None for what is not traced."""
    if carrier is None:
        return None
    return common_pb2.TraceContext(traceparent=carrier.traceparent, tracestate=carrier.tracestate)


def trace_from_pb(message: common_pb2.TraceContext) -> Carrier | None:
    """None where nothing is said."""
    if not message.traceparent:
        return None
    return Carrier(message.traceparent, message.tracestate)


def status_name(error: BaseException) -> str:
    """The status of the call that this was raised of, such as UNAVAILABLE.

    What is not gRPC's own was raised on this side, which has then cancelled the call.
    """
    if isinstance(error, grpc.RpcError):
        code: grpc.StatusCode = error.code()
        return code.name
    return grpc.StatusCode.CANCELLED.name
