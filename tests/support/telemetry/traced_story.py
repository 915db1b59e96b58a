"""A day in the life of traced services: every kind of request, and what a collector has of them."""

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
from support.telemetry.otlp_collector import Collector
from support.telemetry.told_services import FORCED, TOKEN, Services, asking

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
