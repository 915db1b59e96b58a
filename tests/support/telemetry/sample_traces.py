"""A trace of one request as the services write it, made by OpenTelemetry's SDK at given times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from slipstream.telemetry.trace_file import FileSpanExporter

START_NS = 1_700_000_000_000_000_000
GENERATE = "slipstream.rpc.v1.GenerationService/GenerateStream"
SERVER, CLIENT, INTERNAL = SpanKind.SERVER, SpanKind.CLIENT, SpanKind.INTERNAL
STAGES = {
    **{"acquire": 2.0, "encode": 1.0, "prefill": 20.0, "draft": 30.0, "verify": 40.0},
    **{"between": 1.0, "settle": 2.0, "park": 1.0, "close": 2.0},
}
Attributes = Mapping[str, Any]


@dataclass
class _More:
    kind: SpanKind = INTERNAL
    say: Attributes | None = None
    error: str | None = None


@dataclass
class Recorder:
    """Writes spans at given milliseconds into a directory, a file for each service."""

    directory: Path
    start_ns: int = START_NS
    spans: list[ReadableSpan] = field(default_factory=list)
    _providers: dict[str, TracerProvider] = field(default_factory=dict)

    def span(
        self,
        service: str,
        name: str,
        at: tuple[float, float],
        parent: Span | None = None,
        **more: Any,
    ) -> Span:
        """A span from and to so many milliseconds after the start; `more` is of `_More`."""
        rest = _More(**more)
        made = self._tracer(service).start_span(
            name,
            None if parent is None else set_span_in_context(parent),
            rest.kind,
            dict(rest.say or {}),
            None,
            self.start_ns + round(at[0] * 1e6),
        )
        if rest.error is not None:
            made.set_attribute("error.type", "Unavailable")
            made.set_status(Status(StatusCode.ERROR, rest.error))
        made.end(self.start_ns + round(at[1] * 1e6))
        assert isinstance(made, ReadableSpan)
        self.spans.append(made)
        return made

    def _tracer(self, service: str) -> Any:
        if service not in self._providers:
            about = {"service.name": f"slipstream-{service}", "service.instance.id": f"{service}-1"}
            provider = TracerProvider(resource=Resource(about), shutdown_on_exit=False)
            exporter = FileSpanExporter(self.directory, service)
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            self._providers[service] = provider
        return self._providers[service].get_tracer("slipstream", "1.2.3")


def request_attributes(request_id: str) -> dict[str, Any]:
    """Return the attributes that a router sets for a request as a whole."""
    totals = {"steps": 9, "plain_steps": 1, "draft_tokens": 45, "accepted_tokens": 18}
    return {
        "gen_ai.response.id": request_id,
        "gen_ai.request.model": "smollm2-135m",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 28,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.0235,
        **{f"slipstream.stage.{name}_ms": value for name, value in STAGES.items()},
        **{f"slipstream.speculation.{name}": value for name, value in totals.items()},
        "slipstream.speculation.acceptance_length": 3.0,
        "slipstream.speculation.lossless": True,
        "slipstream.stops.cost": 7,
        "slipstream.stops.svip": 2,
    }


def write_trace(
    directory: Path,
    request_id: str = "request-1",
    *,
    start_ns: int = START_NS,
    say: Attributes | None = None,
    error: str | None = None,
) -> Recorder:
    """A request of 100 ms: prefill and two rounds with spans, of ten."""
    to = Recorder(directory, start_ns)
    chat = to.span("client", "chat smollm2-135m", (-1, 101), kind=CLIENT)
    about = request_attributes(request_id) | dict(say or {})
    top = to.span("router", GENERATE, (0, 100), chat, kind=SERVER, say=about)
    to.span("router", "session.acquire", (0, 2), top)
    to.span("router", "prompt.encode", (2, 3), top)
    _round(to, top, 0, (3, 23), "prefill")
    _round(to, top, 1, (24, 32), "speculative")
    _round(to, top, 2, (32, 40), "speculative", error=error)
    to.span("router", "session.park", (98, 100), top)
    return to


def _round(
    to: Recorder,
    top: Span,
    index: int,
    at: tuple[float, float],
    kind: str,
    error: str | None = None,
) -> None:
    """A round, whose draft takes the first 3 ms, each engine's span within that of its call."""
    start, end = at
    middle = start + 3 if index else start
    counts = {"drafted": 5, "accepted": 2, "final": 3} if index else {"final": 1}
    about = {f"slipstream.round.{name}": value for name, value in counts.items()}
    about |= {"slipstream.round.index": index, "slipstream.round.kind": kind}
    around = to.span("router", "round", at, top, say=about)
    calls = [("target", "target.verify", middle, end, _VERDICT, None)]
    if index:
        calls.append(("draft", "draft.propose", start, middle, _PROPOSAL, error))
    for service, name, begun, ended, say, failed in calls:
        asked = to.span("router", name, (begun, ended), around, kind=CLIENT, say=say, error=failed)
        done = to.span(service, name, (begun + 0.1, ended - 0.1), asked, kind=SERVER)
        to.span(service, "engine.queue", (begun + 0.1, begun + 0.4), done)
        to.span(service, "engine.run", (begun + 0.4, ended - 0.1), done)


_VERDICT = {"slipstream.verdict.nodes": 5, "slipstream.verdict.accepted": 2}
_PROPOSAL = {"slipstream.proposal.stop_reason": "cost", "slipstream.proposal.entropy": 1.25}
