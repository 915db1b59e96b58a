"""Trace context on the wire, both ways."""

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
