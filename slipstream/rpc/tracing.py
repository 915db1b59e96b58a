"""Trace contexts on the wire, both ways: apart, since a client of a router loads no telemetry."""

from slipstream.rpc.v1 import common_pb2
from slipstream.telemetry.spans import Carrier


def trace_to_pb(carrier: Carrier | None) -> common_pb2.TraceContext | None:
    """Return a trace's context; None for what is not traced."""
    if carrier is None:
        return None
    return common_pb2.TraceContext(traceparent=carrier.traceparent, tracestate=carrier.tracestate)


def trace_from_pb(message: common_pb2.TraceContext) -> Carrier | None:
    """Return a trace's context; None where nothing is said."""
    return Carrier(message.traceparent, message.tracestate) if message.traceparent else None
