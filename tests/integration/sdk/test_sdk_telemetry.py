"""What the SDK tells the application's own telemetry: a span for each request."""

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from slipstream.client import Client, Mode, SamplingParams, SpeculationOptions, errors
from slipstream.client.embedded import Embedded
from slipstream.client.engine import EngineOptions
from support.telemetry.told_client import Told, remote

FLOAT32 = EngineOptions(dtype="float32")


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


def test_a_request_is_one_span_that_says_what_was_asked_and_what_it_cost(client, told):
    sampling, forced = SamplingParams(temperature=0.5, top_k=9), SpeculationOptions(Mode.FORCED)
    asked = {"max_tokens": 20, "model": "tiny", "sampling": sampling, "speculation": forced}
    result = client.generate("hello", **asked)
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


def test_a_turn_names_its_conversation(client, told):
    with client.session() as session:
        session.generate("hello", max_tokens=5)
        list(session.stream("more", max_tokens=5))
    first, second = told.spans()
    for span in (first, second):
        assert span.attributes["gen_ai.conversation.id"] == session.session_id
    assert [span.attributes["gen_ai.request.stream"] for span in (first, second)] == [False, True]
    assert second.attributes["gen_ai.usage.cache_read.input_tokens"] > 0


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
