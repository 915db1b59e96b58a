"""Spans of calls that go out: whose children they are, and what they say of how a call ended."""

import asyncio
from contextlib import contextmanager

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from slipstream.core.errors import Unavailable
from slipstream.telemetry.attributes import rpc_attributes, server_attributes
from slipstream.telemetry.spans import Replies
from support.telemetry.listening import Listener, parent_id, span_id

METHOD = "slipstream.rpc.v1.TargetService/StreamKv"


def status_of(error):
    return "LOST" if isinstance(error, ValueError) else "CANCELLED"


@contextmanager
def calling(heard):
    """A call that is made for a traced reply."""
    with (
        heard.caller() as at,
        Replies(heard.tracer).answering("answer", at) as reply,
        reply.client_span(METHOD, {"size": 3}, status_of=status_of) as call,
    ):
        yield call


def test_a_call_is_a_child_of_its_reply_and_carries_its_own_place():
    heard = Listener()
    with calling(heard) as call:
        carrier = call.carrier
    span = heard.span(METHOD)
    assert span.kind is SpanKind.CLIENT
    assert parent_id(span) == heard.span("answer").context.span_id
    assert span_id(carrier) == span.context.span_id
    assert dict(span.attributes) == {"size": 3, "rpc.response.status_code": "OK"}


@pytest.mark.parametrize(
    ("error", "status", "kind", "text"),
    [
        (Unavailable("no room"), "CANCELLED", "Unavailable", "no room"),
        (ValueError("a secret"), "LOST", "LOST", None),
        (asyncio.CancelledError(), "CANCELLED", None, None),
        (GeneratorExit(), "CANCELLED", None, None),
    ],
)
def test_an_error_is_the_status_of_its_call_and_only_our_own_are_quoted(error, status, kind, text):
    heard = Listener()
    with pytest.raises(type(error)), calling(heard):
        raise error
    span = heard.span(METHOD)
    said = {"size": 3, "rpc.response.status_code": status}
    assert dict(span.attributes) == said | ({"error.type": kind} if kind else {})
    code = StatusCode.ERROR if kind else StatusCode.UNSET
    assert (span.status.status_code, span.status.description) == (code, text)
    assert not span.events


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.7:50051", "10.0.0.7", 50051),
        ("dns:///router.example:443", "router.example", 443),
        ("[::1]:80", "::1", 80),
        ("unix:/run/slipstream:1", "unix:/run/slipstream:1", None),
        ("xds:///router", "xds:///router", None),
    ],
)
def test_whoever_is_called_is_told_by_host_and_port(address, host, port):
    said = {"server.address": host} | ({} if port is None else {"server.port": port})
    assert server_attributes(address) == said
    about = {"rpc.system.name": "grpc", "rpc.method": METHOD}
    assert rpc_attributes(METHOD, address) == about | said
