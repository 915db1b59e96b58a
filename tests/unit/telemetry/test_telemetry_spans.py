"""Spans of calls that go out: whose children they are, and what they say of how a call ended."""

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from slipstream.core.errors import Unavailable
from slipstream.telemetry.spans import client_span, rpc_attributes, server_attributes
from support.telemetry.listening import Listener, parent_id, span_id

METHOD = "slipstream.rpc.v1.TargetService/StreamKv"


def status_of(error):
    return "LOST" if isinstance(error, ValueError) else "CANCELLED"


def test_a_call_is_a_child_of_its_parent_and_tells_whoever_is_called_its_own_place():
    heard = Listener()
    with heard.tracer.start_as_current_span("parent") as parent:
        pass
    with client_span(heard.tracer, METHOD, parent=parent) as call:
        call.set({"size": 3})
        told = call.carrier
    span = heard.span(METHOD)
    assert span.kind is SpanKind.CLIENT
    assert parent_id(span) == parent.get_span_context().span_id
    assert span_id(told) == span.get_span_context().span_id
    assert dict(span.attributes) == {"size": 3}


def test_without_a_parent_a_call_is_a_child_of_what_is_current():
    heard = Listener()
    with heard.caller() as at, client_span(heard.tracer, "call"):
        pass
    assert parent_id(heard.span("call")) == span_id(at)


def test_a_call_that_is_not_sampled_is_carried_nowhere():
    tracer = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test")
    with client_span(tracer, "call") as call:
        assert call.carrier is None


def test_a_call_that_ends_well_says_so_only_where_the_wire_has_a_word_for_it():
    heard = Listener()
    with client_span(heard.tracer, "call"):
        pass
    with client_span(heard.tracer, "rpc", status_of=status_of):
        pass
    assert dict(heard.span("call").attributes) == {}
    assert dict(heard.span("rpc").attributes) == {"rpc.response.status_code": "OK"}


@pytest.mark.parametrize(
    ("error", "said", "text"),
    [
        (Unavailable("no room"), {"error.type": "Unavailable"}, "no room"),
        (ValueError("a secret"), {"error.type": "ValueError"}, None),
    ],
)
def test_an_error_is_the_spans_status_and_only_our_own_are_quoted(error, said, text):
    heard = Listener()
    with pytest.raises(type(error)), client_span(heard.tracer, "call"):
        raise error
    span = heard.span("call")
    assert dict(span.attributes) == said
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, text)
    assert not span.events


def test_an_error_of_the_wire_goes_by_its_status():
    heard = Listener()
    with pytest.raises(ValueError), client_span(heard.tracer, "call", status_of=status_of):
        raise ValueError("a secret")
    said = {"error.type": "LOST", "rpc.response.status_code": "LOST"}
    assert dict(heard.span("call").attributes) == said


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_a_call_that_is_given_up_has_not_failed(error):
    heard = Listener()
    with pytest.raises(error), client_span(heard.tracer, "call", status_of=status_of):
        raise error
    span = heard.span("call")
    assert dict(span.attributes) == {"rpc.response.status_code": "CANCELLED"}
    assert span.status.status_code is StatusCode.UNSET


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
