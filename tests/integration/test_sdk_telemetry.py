"""What the SDK tells the application's own telemetry: a span and a few numbers for each request."""

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

import tiny_checkpoint
from background import served
from bad_routers import Breaking, Failing, Scripted, first_chunk, register
from cluster import running
from slipstream.client import AsyncClient, Client, SamplingParams, errors
from slipstream.client.connection import connection
from slipstream.client.embedded import Embedded
from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.client.engine import EngineOptions
from slipstream.client.remote import Remote
from slipstream.client.remote_aio import AsyncRemote
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.telemetry.catalog import CATALOG, CLIENT
from slipstream.telemetry.sdk_spans import SdkTelemetry

SECRET = "the-cat-sat"
FLOAT32 = EngineOptions(dtype="float32")
GONE = errors.Unavailable("about to stop")


class Told:
    """What an application with telemetry of its own gets to see."""

    def __init__(self, **options):
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.watcher = SdkTelemetry(self.tracers, MeterProvider([self._reader]))

    def spans(self):
        """Those that have ended since they were asked for, as dictionaries."""
        spans = self._spans.get_finished_spans()
        self._spans.clear()
        return spans

    def span(self):
        (span,) = self.spans()
        return span

    def points(self):
        """Counts and sums of each metric, by name and attributes."""
        data = self._reader.get_metrics_data()
        return {
            (metric.name, frozenset(point.attributes.items())): (point.count, point.sum)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


@pytest.fixture
def told():
    return Told()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def router(folder):
    with running(folder, f"vanilla:{folder}") as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def engines(folder):
    return Embedded.load(str(folder), f"vanilla:{folder}", FLOAT32)


def remote(address):
    return Remote(connection(address, token=None, tls=None, retries=True), 60)


def async_remote(address):
    return AsyncRemote(connection(address, token=None, tls=None, retries=True), 60)


@pytest.fixture(params=["embedded", "remote"])
def backend(request):
    if request.param == "embedded":
        return request.getfixturevalue("engines")
    return remote(request.getfixturevalue("router"))


@pytest.fixture
def client(backend, told):
    return Client.of(backend, watcher=told.watcher)


@pytest.fixture(params=["embedded", "remote"])
async def async_client(request, folder, router, told):
    if request.param == "remote":
        backend = async_remote(router)
    else:
        backend = AsyncEmbedded.load(str(folder), f"vanilla:{folder}", FLOAT32)
    async with AsyncClient.of(backend, watcher=told.watcher) as client:
        yield client


def test_a_request_is_one_span_that_says_what_was_asked_and_what_it_cost(client, told):
    result = client.generate(
        "hello", max_tokens=20, model="tiny", sampling=SamplingParams(temperature=0.5, top_k=9)
    )
    span, stats = told.span(), result.stats
    said = dict(span.attributes)
    assert span.name == "chat tiny"
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "slipstream"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "tiny"
    asked = {"max_tokens": 20, "temperature": 0.5, "top_p": 1.0, "top_k": 9, "seed": 0}
    assert {name: said[f"gen_ai.request.{name}"] for name in asked} == asked
    assert not said["gen_ai.request.stream"]
    assert said["gen_ai.response.id"] == result.request_id
    assert said["gen_ai.response.finish_reasons"] == (result.finish_reason.value,)
    assert said["gen_ai.usage.input_tokens"] == stats.num_prompt_tokens
    assert said["gen_ai.usage.output_tokens"] == stats.num_output_tokens
    assert said["gen_ai.usage.cache_read.input_tokens"] == stats.num_cached_tokens
    speculation = stats.speculation
    assert speculation.num_draft_tokens > 0
    assert {name: said[f"slipstream.speculation.{name}"] for name in SPECULATION} == {
        "acceptance_length": speculation.mean_acceptance_length,
        "acceptance_rate": speculation.draft_acceptance_rate,
        "draft_tokens": speculation.num_draft_tokens,
        "accepted_tokens": speculation.num_accepted_draft_tokens,
    }
    assert span.status.status_code is StatusCode.UNSET


SPECULATION = ("acceptance_length", "acceptance_rate", "draft_tokens", "accepted_tokens")


def test_a_span_says_where_the_engines_are(engines, router, told):
    Client.of(engines, watcher=told.watcher).generate("hello", max_tokens=2)
    span = told.span()
    assert span.kind is SpanKind.INTERNAL
    assert "server.address" not in span.attributes
    with Client.of(remote(router), watcher=told.watcher) as client:
        client.generate("hello", max_tokens=2)
    span = told.span()
    assert span.kind is SpanKind.CLIENT
    host, _, port = router.rpartition(":")
    assert (span.attributes["server.address"], span.attributes["server.port"]) == (host, int(port))


def test_what_goes_through_no_chat_template_is_a_completion(client, told):
    client.generate("hello", max_tokens=2, raw=True)
    client.generate([5, 6, 7], max_tokens=2)
    client.generate([{"role": "user", "content": "hello"}], max_tokens=2)
    assert [span.name for span in told.spans()] == ["text_completion", "text_completion", "chat"]


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


async def test_a_stream_for_asyncio_is_one_span_too(async_client, told):
    stream = async_client.stream("hello", max_tokens=20)
    chunks = [chunk async for chunk in stream]
    span = told.span()
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert span.attributes["gen_ai.response.id"] == chunks[0].prompt.request_id
    assert span.attributes["gen_ai.usage.output_tokens"] == 20
    assert span.attributes["gen_ai.response.time_to_first_chunk"] > 0


def test_a_turn_names_its_conversation(client, told):
    with client.session() as session:
        session.generate("hello", max_tokens=5)
        list(session.stream("more", max_tokens=5))
    first, second = told.spans()
    for span in (first, second):
        assert span.attributes["gen_ai.conversation.id"] == session.session_id
    assert [span.attributes["gen_ai.request.stream"] for span in (first, second)] == [False, True]
    assert second.attributes["gen_ai.usage.cache_read.input_tokens"] > 0


async def test_a_turn_for_asyncio_names_its_conversation(async_client, told):
    async with async_client.session() as session:
        await session.generate("hello", max_tokens=5)
        span = told.span()
        assert span.attributes["gen_ai.conversation.id"] == session.session_id
        assert not span.attributes["gen_ai.request.stream"]


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


async def test_an_abandoned_stream_for_asyncio_ends_its_span(async_client, told):
    stream = async_client.stream("hello", max_tokens=60)
    await anext(stream)
    await stream.aclose()
    assert told.span().attributes["error.type"] == "Cancelled"
    stream = async_client.stream("hello", max_tokens=60)
    await anext(stream)
    del stream
    assert told.span().attributes["error.type"] == "Cancelled"


def test_a_session_that_is_closed_ends_the_span_of_its_turn(client, told):
    session = client.session()
    stream = session.stream("hello", max_tokens=60)
    next(stream)
    session.close()
    assert told.span().attributes["error.type"] == "Cancelled"


async def test_a_session_for_asyncio_that_is_closed_ends_the_span_of_its_turn(async_client, told):
    session = async_client.session()
    stream = session.stream("hello", max_tokens=60)
    await anext(stream)
    await session.aclose()
    assert told.span().attributes["error.type"] == "Cancelled"
    assert stream.is_open


async def test_a_task_that_is_cancelled_ends_its_span(told):
    hanging = Scripted(first_chunk(), hangs=True)
    with served(register(hanging)) as address:
        async with AsyncClient.of(async_remote(address), watcher=told.watcher) as client:
            stream = client.stream("hello")
            await anext(stream)
            task = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    span = told.span()
    assert span.attributes["error.type"] == "Cancelled"


async def test_a_stream_that_is_never_read_was_no_request(async_client, told):
    async_client.stream("hello")
    assert told.spans() == ()
    assert told.points() == {}


def test_a_request_that_is_refused_is_a_span_with_its_error(client, told):
    for ask in (client.generate, client.stream, client.session().stream):
        with pytest.raises(errors.PromptTooLong):
            ask("x" * 200)
        span = told.span()
        assert span.attributes["error.type"] == "PromptTooLong"
        assert span.status.status_code is StatusCode.ERROR


async def test_a_request_that_is_refused_for_asyncio_is_a_span_with_its_error(async_client, told):
    for ask in (async_client.generate, async_client.session().generate):
        with pytest.raises(errors.PromptTooLong):
            await ask("x" * 200)
        assert told.span().attributes["error.type"] == "PromptTooLong"


def test_a_stream_that_fails_is_a_span_with_its_error(told):
    failing = Failing(errors.ModelError("the model is gone"), num_chunks=2)
    with (
        served(register(failing)) as address,
        Client.of(remote(address), watcher=told.watcher) as client,
        pytest.raises(errors.SlipstreamError) as raised,
    ):
        list(client.stream("hello"))
    span = told.span()
    assert span.attributes["error.type"] == type(raised.value).__name__
    assert span.attributes["gen_ai.usage.output_tokens"] == 2
    assert span.status.description == str(raised.value)


def test_a_stream_that_goes_on_says_where_in_the_same_span(told):
    with (
        served(register(Breaking(GONE, [3, 0, 5, 20]))) as address,
        Client.of(remote(address), watcher=told.watcher) as client,
    ):
        assert len(list(client.stream("hello"))) > 20
    assert resumed(told.span()) == [3, 3, 8]


async def test_a_stream_for_asyncio_that_goes_on_says_where_in_the_same_span(told):
    with served(register(Breaking(GONE, [3, 20]))) as address:
        async with AsyncClient.of(async_remote(address), watcher=told.watcher) as client:
            assert [chunk async for chunk in client.stream("hello")]
    assert resumed(told.span()) == [3]


def resumed(span):
    assert {event.name for event in span.events} == {"resumed"}
    return [event.attributes["slipstream.resumed.num_received"] for event in span.events]


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
def hearing(watcher):
    """A router, and every way in which a client may ask it."""
    heard = Hearing()
    with (
        served(register(heard)) as address,
        Client.of(remote(address), watcher=watcher) as client,
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


async def test_the_router_hears_of_the_span(told):
    with hearing(told.watcher) as (heard, ways):
        for ask in ways:
            ask()
            assert parent_in(heard.trace()) == ids(told.span())
    heard = Hearing()
    with served(register(heard)) as address:
        async with AsyncClient.of(async_remote(address), watcher=told.watcher) as client:
            await client.generate("hello")
            assert parent_in(heard.trace()) == ids(told.span())
            await client.session().generate("hello")
            assert parent_in(heard.trace()) == ids(told.span())


def test_a_span_is_a_child_of_the_applications_and_passes_its_state_on(told):
    state = trace.TraceState([("vendor", "1")])
    context = trace.SpanContext(7, 9, True, trace.TraceFlags(1), state)
    with (
        hearing(told.watcher) as (heard, ways),
        trace.use_span(trace.NonRecordingSpan(context)),
    ):
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
            hearing(SdkTelemetry(providers)) as (heard, ways),
            trace.use_span(trace.NonRecordingSpan(context)),
        ):
            for ask in ways:
                ask()
                assert parent_in(heard.trace()) == (7, 9)


def test_of_what_is_not_recorded_nobody_hears():
    off = Told(sampler=ALWAYS_OFF)
    with hearing(off.watcher) as (heard, ways):
        for ask in ways:
            ask()
            assert heard.trace() == {}
    assert off.spans() == ()


def test_without_a_provider_nothing_is_recorded_and_nothing_is_sent():
    with hearing(None) as (heard, ways):
        for ask in ways:
            ask()
            assert heard.metadata
            assert heard.trace() == {}
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def test_an_application_that_sets_telemetry_up_later_gets_it(router):
    code = f"""
import json, sys
from slipstream.client import Client
with Client({router!r}) as client:
    client.generate("hello", max_tokens=3)
    print(json.dumps("opentelemetry" in sys.modules))
    from opentelemetry import trace
    client.generate("hello", max_tokens=3)
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    client.generate("hello", max_tokens=3)
    print(json.dumps([span.name for span in spans.get_finished_spans()]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ".dev"},
        capture_output=True,
        text=True,
        check=True,
    )
    is_loaded, names = map(json.loads, run.stdout.splitlines())
    assert not is_loaded
    assert names == ["chat"]


def test_no_attribute_holds_the_prompt_or_the_answer(client, told):
    said = [{"role": "user", "content": SECRET}]
    biased = SamplingParams(logit_bias=((40, 100.0),))  # a letter, twenty times
    text = client.generate(said, max_tokens=20, sampling=biased).text
    assert len(text) == 20
    list(client.stream(SECRET, max_tokens=20, raw=True, stop=[f"stop {SECRET}"]))
    bad = [[{"role": SECRET}], [{"role": "user", "content": SECRET}, SECRET], SECRET.encode(), 7]
    for prompt in (*bad, SECRET * 50, [7, 9999]):
        with pytest.raises(errors.InvalidRequest):
            client.generate(prompt, max_tokens=20)
    spans = told.spans()
    assert len(spans) == 8
    for span in spans:
        whole = span.to_json()
        assert SECRET not in whole
        assert text not in whole


def test_a_request_counts_once_in_each_metric(router, told):
    with Client.of(remote(router), watcher=told.watcher) as client:
        result = client.generate("hello", max_tokens=5, model="tiny")
        list(client.stream("hello", max_tokens=5, model="tiny"))
        with pytest.raises(errors.PromptTooLong):
            client.generate("x" * 200, model="tiny")
    operation = {
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "slipstream"),
        ("gen_ai.request.model", "tiny"),
    }
    seen = told.points()
    input_tokens, output_tokens = (
        seen["gen_ai.client.token.usage", frozenset({*operation, ("gen_ai.token.type", kind)})]
        for kind in ("input", "output")
    )
    assert input_tokens == (2, 2 * result.stats.num_prompt_tokens)
    assert output_tokens == (2, 10)
    failed = frozenset({*operation, ("error.type", "PromptTooLong")})
    name = "gen_ai.client.operation.duration"
    assert seen[name, frozenset(operation)][0] == 2
    assert seen[name, failed][0] == 1
    assert seen["gen_ai.client.operation.time_to_first_chunk", frozenset(operation)][0] == 1
    assert {name for name, _ in seen} == {at.name for at in CATALOG if CLIENT in at.roles}
