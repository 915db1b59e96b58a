"""What the SDK sends to the telemetry of an application: a span for each request, whose trace goes
on to the router."""

import json
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from slipstream.client import Client, errors
from slipstream.client.connection import connection
from slipstream.client.embedded import Embedded
from slipstream.client.engine import EngineOptions
from slipstream.client.remote import RemoteBackend
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.telemetry.sdk_spans import SdkTelemetry
from support.commands import ran_python
from support.network.bad_routers import Failing, Scripted, register
from support.services.background import served

FLOAT32 = EngineOptions(dtype="float32")


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


def remote(address):
    to = connection(address, token=None, tls=None, retries=True)
    return RemoteBackend(to, 60, to.channel(is_blocking=True))


@pytest.fixture
def told():
    return Told()


@pytest.fixture(scope="module")
def engines(folder):
    return Embedded.load(str(folder), f"vanilla:{folder}", FLOAT32)


@pytest.fixture(params=["embedded", "remote"])
def backend(request):
    if request.param == "embedded":
        return request.getfixturevalue("engines")
    return remote(request.getfixturevalue("router").address)


@pytest.fixture
def client(backend, told):
    return Client.of(backend, telemetry=told.telemetry)


def test_a_span_says_where_the_engines_are(engines, router, told):
    Client.of(engines, telemetry=told.telemetry).generate("hello", max_tokens=2)
    span = told.span()
    assert span.kind is SpanKind.INTERNAL
    assert "server.address" not in span.attributes
    with Client.of(remote(router.address), telemetry=told.telemetry) as client:
        client.generate("hello", max_tokens=2)
    span = told.span()
    assert span.kind is SpanKind.CLIENT
    host, _, port = router.address.rpartition(":")
    assert (span.attributes["server.address"], span.attributes["server.port"]) == (host, int(port))


def test_a_stream_is_one_span_that_ends_with_its_last_chunk(client, told):
    stream = client.stream("hello", max_tokens=20)
    chunk = next(stream)
    while chunk.finish_reason is None:
        assert told.spans() == ()
        chunk = next(stream)
    span = told.span()
    assert span.attributes["gen_ai.request.stream"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 20
    elapsed_s = (span.end_time - span.start_time) / 1e9
    assert 0 < span.attributes["gen_ai.response.time_to_first_chunk"] <= elapsed_s
    stream.close()
    assert told.spans() == ()


@pytest.mark.parametrize("is_dropped", [False, True], ids=["closed", "dropped"])
def test_an_abandoned_stream_ends_its_span(client, told, is_dropped):
    stream = client.stream("hello", max_tokens=60)
    num_tokens = len(next(stream).token_ids)
    if not is_dropped:
        stream.close()
    del stream
    span = told.span()
    assert span.attributes["error.type"] == "Cancelled"
    assert span.attributes["gen_ai.usage.output_tokens"] == num_tokens
    assert span.status.status_code is StatusCode.UNSET


def test_a_request_that_is_refused_is_a_span_with_its_error(client, told):
    for ask in (client.generate, client.stream, client.session().stream):
        with pytest.raises(errors.PromptTooLong):
            ask("x" * 200)
        span = told.span()
        assert span.attributes["error.type"] == "PromptTooLong"
        assert span.status.status_code is StatusCode.ERROR


def test_a_stream_that_fails_is_a_span_with_its_error(told):
    failing = Failing(errors.ModelError("the model is gone"), num_chunks=2)
    with (
        served(register(failing)) as address,
        Client.of(remote(address), telemetry=told.telemetry) as client,
        pytest.raises(errors.SlipstreamError) as raised,
    ):
        list(client.stream("hello"))
    span = told.span()
    assert span.attributes["error.type"] == type(raised.value).__name__
    assert span.attributes["gen_ai.usage.output_tokens"] == 2
    assert span.status.description == str(raised.value)


class Hearing(Scripted):
    """A router that answers everything with little, and keeps what came along."""

    def __init__(self):
        end = pb.GenerateStreamResponse(prompt=pb.PromptInfo(), finish=pb.FinishInfo(reason=1))
        super().__init__(end)

    async def Generate(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        return pb.GenerateResponse(finish=pb.FinishInfo(reason=1))

    def trace(self):
        """The trace context that the last call brought, if any."""
        names = ("traceparent", "tracestate")
        return {name: self.metadata[name] for name in names if name in self.metadata}


@contextmanager
def hearing(telemetry):
    """A router, and every way in which a client may ask it."""
    heard = Hearing()
    with (
        served(register(heard)) as address,
        Client.of(remote(address), telemetry=telemetry) as client,
    ):
        yield (
            heard,
            [
                lambda: client.generate("hello"),
                lambda: list(client.stream("hello")),
                lambda: client.session().generate("hello"),
            ],
        )


def parent_in(header):
    _, trace_id, span_id, flags = header["traceparent"].split("-")
    assert int(flags, 16) & trace.TraceFlags.SAMPLED
    return int(trace_id, 16), int(span_id, 16)


def ids(span):
    context = span.get_span_context()
    return context.trace_id, context.span_id


def test_a_span_is_a_child_of_the_applications_and_passes_its_state_on(told):
    state = trace.TraceState([("vendor", "1")])
    context = trace.SpanContext(7, 9, True, trace.TraceFlags(1), state)
    with hearing(told.telemetry) as (heard, ways), trace.use_span(trace.NonRecordingSpan(context)):
        for ask in ways:
            ask()
            span = told.span()
            assert (span.parent.trace_id, span.parent.span_id) == (7, 9)
            assert parent_in(heard.trace()) == ids(span)
            assert heard.trace()["tracestate"] == "vendor=1"


def test_where_the_sdk_is_not_recorded_the_router_hears_of_the_applications_span():
    context = trace.SpanContext(7, 9, True, trace.TraceFlags(1))
    for providers in (Told(sampler=ALWAYS_OFF).tracers, NoOpTracerProvider()):
        with (
            hearing(SdkTelemetry(providers.get_tracer("app"))) as (heard, ways),
            trace.use_span(trace.NonRecordingSpan(context)),
        ):
            for ask in ways:
                ask()
                assert parent_in(heard.trace()) == (7, 9)


def test_what_is_not_sampled_is_not_for_the_router_to_sample_either():
    off = Told(sampler=ALWAYS_OFF)
    with hearing(off.telemetry) as (heard, ways):
        for ask in ways:
            ask()
            assert int(heard.trace()["traceparent"].rpartition("-")[2], 16) & 1 == 0
    assert off.spans() == ()


def test_without_a_provider_nothing_is_recorded_and_nothing_is_sent():
    with hearing(None) as (heard, ways):
        for ask in ways:
            ask()
            assert heard.metadata
            assert heard.trace() == {}
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


LATE = """
import json, sys
from slipstream.client import Client
with Client(sys.argv[1]) as client:
    client.generate("hello")
    print(json.dumps("opentelemetry" in sys.modules))
    from opentelemetry import trace
    client.generate("hello")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    client.generate("hello")
    print(json.dumps([span.name for span in spans.get_finished_spans()]))
"""


def test_an_application_that_sets_telemetry_up_later_gets_it():
    with served(register(Hearing())) as address:
        run = ran_python("-c", LATE, address)
    is_loaded, names = map(json.loads, run.stdout.splitlines())
    assert not is_loaded
    assert names == ["chat"]
