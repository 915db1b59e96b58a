"""Traces of the three services as processes, and of who asks them, as a collector gets them.
Everything is asked once, the services end, and the laws are about what had come by then."""

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from slipstream.client import SamplingParams
from slipstream.core.errors import PromptTooLong
from slipstream.rpc.channel import ChannelOptions, connect_sync
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceStub
from slipstream.telemetry.sdk_spans import SdkTelemetry
from slipstream.telemetry.traces import find_trace
from support.services import fleet
from support.state.redis_server import running_redis
from support.telemetry.otlp_collector import Collector, collector, traces_of
from support.telemetry.told_services import FORCED, TOKEN, Services, asking, services

APPLICATION, ROUTER = "application", "slipstream-router"
TARGET, DRAFT = "slipstream-target", "slipstream-draft"
PROMPT = "walrus umbrella marmalade"
MARK = "xylophone"
SAMPLED = SamplingParams(temperature=0.8, seed=7)
FIRST = 4
_NOT_SAMPLED = "00"


@dataclass
class Seen:
    """What was asked, by request id, and what the collector has of it."""

    collector: Collector
    watched: list[str] = field(default_factory=list)
    """Requests of an application that traces, too."""
    bare: list[str] = field(default_factory=list)
    """Those of one that does not."""
    long: str = "long"
    followed: str = "followed"
    lost: str = "lost"
    unsampled: dict[str, str] = field(default_factory=dict)
    """Trace ids of callers that say they are not sampled."""
    num_fallbacks: int = 0
    codes: list[int] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)

    def trace(self, request_id):
        found = find_trace(self.collector.spans, request_id)
        assert found is not None, f"nothing came of {request_id}"
        return found

    @property
    def well(self):
        return [*self.watched, *self.bare]


@contextmanager
def application(to):
    """An application's own telemetry: everything is sampled, and sent to the same collector."""
    provider = TracerProvider(resource=Resource({"service.name": APPLICATION}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(to.url)))
    yield SdkTelemetry(provider.get_tracer("app"))
    provider.shutdown()


def ask(client, name, *, is_stream, has_session, sampling, max_tokens=24):
    """One request; sessions have two turns, of which the second one goes by the name."""
    options = {"speculation": FORCED, "sampling": sampling, "max_tokens": max_tokens}
    asked = client
    if has_session:
        asked = client.session()
        asked.generate(PROMPT, **options, request_id=f"{name}-before")
    if is_stream:
        list(asked.stream(PROMPT, **options, request_id=name))
    else:
        asked.generate(PROMPT, **options, request_id=name)
    return [f"{name}-before", name] if has_session else [name]


def ask_unsampled(router, request_id):
    """A request without the SDK, whose caller is not sampled; the id of its trace."""
    trace_id = secrets.token_hex(16)
    parent = f"00-{trace_id}-{secrets.token_hex(8)}-{_NOT_SAMPLED}"
    metadata = (("authorization", f"Bearer {TOKEN}"), ("traceparent", parent))
    with connect_sync(router.ready(), ChannelOptions()) as channel:
        prompt = pb.Prompt(text=PROMPT)
        asked = pb.Generation(prompt=prompt, request_id=request_id)
        asked.stopping.max_new_tokens = 8
        request = pb.GenerateRequest(generation=asked)
        GenerationServiceStub(channel).Generate(request, metadata=metadata)
    return trace_id


def ask_well(seen, router, watcher):
    """Every kind of request, of both applications."""
    cases = list(product([False, True], [False, True], [SamplingParams(), SAMPLED]))
    for who, kind in ((watcher, "watched"), (None, "bare")):
        names = seen.watched if who else seen.bare
        with asking(router, who) as client:
            for number, (is_stream, has_session, sampling) in enumerate(cases):
                says = {"is_stream": is_stream, "has_session": has_session, "sampling": sampling}
                names.extend(ask(client, f"{kind}-{number}", **says))


def ask_for_trouble(seen, running, router, watcher):
    """What is refused, and what loses its draft: the last thing that is asked."""
    with asking(router, watcher) as client:
        for prompt in (f"{MARK} " * 2, [{"role": "user", "content": MARK}]):
            with pytest.raises(PromptTooLong):
                client.generate(prompt, max_tokens=fleet.CONTEXT, request_id="refused")
        seen.collector.until(lambda: is_whole(seen))
        chunks = client.stream(PROMPT, max_tokens=300, speculation=FORCED, request_id=seen.lost)
        *_, last = running.lose_draft(chunks)
        seen.num_fallbacks = sum(last.stats.speculation.fallbacks.values())


def is_whole(seen):
    spans = seen.collector.spans
    ids = {span.span_id for span in spans}
    asked = {span.parent_id for span in spans if span.service in (TARGET, DRAFT)}
    return asked <= ids and all(find_trace(spans, name) for name in seen.well)


def ask_all(seen, running: Services, store, watcher):
    told = running.router("--store-url", store, "--trace-rounds", str(FIRST))
    quiet = running.router(ratio=0)
    ask_well(seen, told, watcher)
    with asking(told) as client:
        ask(client, seen.long, is_stream=True, has_session=False, sampling=SAMPLED, max_tokens=120)
    with asking(quiet, watcher) as client:
        ask(client, seen.followed, is_stream=True, has_session=False, sampling=SAMPLED)
    with asking(quiet) as client:
        ask(client, "quiet", is_stream=True, has_session=True, sampling=SAMPLED)
    for router in (told, quiet):
        name = f"unsampled-{len(seen.unsampled)}"
        seen.unsampled[name] = ask_unsampled(router, name)
    ask_for_trouble(seen, running, told, watcher)


GENERATE = "slipstream.rpc.v1.GenerationService/Generate"
SERVED, CALLED = (GENERATE, f"{GENERATE}Stream"), ("draft.propose", "target.verify")
INNER = ("round", "prompt.encode", "session.acquire", "session.park", "kv.wait", "engine.queue")
KINDS = {
    **{name: {"server"} for name in SERVED},
    **{name: {"client", "server"} for name in CALLED},
    **{name: {"internal"} for name in (*INNER, "engine.run")},
    "chat": {"client"},
}


@pytest.fixture(scope="module")
def seen(folder):
    with collector() as to, running_redis() as store:
        found = Seen(to)
        with application(to) as watcher, services(to, folder, str(fleet.glide_of(folder))) as run:
            ask_all(found, run, store, watcher)
            found.codes = run.stop()
            processes = (run.target, run.draft, *run.routers)
            found.logs = [line for at in processes for line in (*at.out, *at.err)]
        yield found


def children(trace, span):
    return [at for at in trace.spans if at.parent_id == span.span_id]


def rounds(trace):
    return [span for span in trace.spans if span.name == "round"]


def test_the_services_end_well_and_complain_of_nothing(seen):
    assert seen.codes == [0, 0, 0]
    assert [line for line in seen.logs if "Traceback" in line or " ERROR " in line] == []


def test_a_distributed_request_is_one_tree(seen):
    for request_id in [*seen.well, seen.long, seen.followed]:
        trace = seen.trace(request_id)
        tops = [span for span in trace.spans if span.parent_id is None]
        is_watched = request_id in (*seen.watched, seen.followed)
        assert [span.service for span in tops] == [APPLICATION if is_watched else ROUTER]
        assert trace.orphans == ()
        services = {span.service for span in trace.spans}
        assert services == {ROUTER, TARGET, DRAFT} | ({APPLICATION} if is_watched else set())


def test_spans_have_the_names_and_kinds_that_are_written_down(seen):
    found = {}
    for span in seen.collector.spans:
        found.setdefault(span.name.split(" ")[0], set()).add(span.kind)
    assert found == KINDS


def test_the_first_rounds_have_children_in_both_engines(seen):
    for request_id in [*seen.well, seen.long]:
        trace = seen.trace(request_id)
        first = rounds(trace)
        indices = [span.attributes["slipstream.round.index"] for span in first]
        assert indices == list(range(len(first)))
        assert 1 < len(first) <= FIRST
        for span in first:
            (verify,) = [at for at in children(trace, span) if at.name == "target.verify"]
            (answer,) = children(trace, verify)
            assert (answer.service, answer.name) == (TARGET, "target.verify")
            parts = {at.name for at in children(trace, answer)}
            assert parts == {"engine.queue", "engine.run"}
            for propose in (at for at in children(trace, span) if at.name == "draft.propose"):
                assert is_answered(trace, propose)


def is_answered(trace, propose):
    """Whether a draft has a span of it; what is copied from the text needs no draft."""
    if propose.attributes["slipstream.proposal.stop_reason"] == "lookup":
        return children(trace, propose) == []
    (answer,) = children(trace, propose)
    parts = {span.name for span in children(trace, answer)} - {"kv.wait"}
    return answer.service == DRAFT and parts == {"engine.queue", "engine.run"}


def test_what_is_not_sampled_is_traced_nowhere(seen):
    assert find_trace(seen.collector.spans, "quiet") is None
    traces = traces_of(seen.collector.spans)
    assert not traces.keys() & set(seen.unsampled.values())
    sampled = {APPLICATION, ROUTER}
    assert all({span.service for span in trace} & sampled for trace in traces.values())


def test_a_lost_draft_shows_in_the_trace_as_a_fallback(seen):
    trace = seen.trace(seen.lost)
    said = trace.request.attributes
    total = sum(said[name] for name in said if name.startswith("slipstream.fallbacks."))
    assert total == seen.num_fallbacks > 0
    assert not trace.request.has_failed


def test_an_error_is_the_status_of_the_requests_span_without_the_prompt(seen):
    refused = [span for span in seen.collector.spans if span.is_request and span.has_failed]
    assert len(refused) == 2
    for span in refused:
        assert span.attributes["error.type"] == "PromptTooLong"
        assert span.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
        (asked,) = [at for at in seen.collector.spans if at.span_id == span.parent_id]
        assert asked.attributes["error.type"] == "PromptTooLong"
        assert asked.has_failed


@pytest.mark.parametrize("secret", [*PROMPT.split(), MARK, TOKEN])
def test_nothing_that_was_said_is_in_any_span(seen, secret):
    for span in seen.collector.spans:
        said = [span.name, span.error, *map(str, span.attributes.values())]
        assert not any(secret in str(text) for text in said)


def test_stages_add_up_to_the_time_of_their_request_and_no_more(seen):
    for name in [*seen.well, seen.long, seen.lost]:
        trace = seen.trace(name)
        spent_ms = sum(trace.stages().values())
        assert 0.95 * trace.request.duration_ms <= spent_ms <= trace.request.duration_ms + 0.01
