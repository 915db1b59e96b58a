"""What a trace says of its request: figures, where the time went, and what drafting gave.

Knows neither terminals nor pages. What nobody wrote down is not said.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipstream.cli.trace_rows import name_of, printable, service_of, value_text
from slipstream.telemetry.explained import explained, orphans, stages
from slipstream.telemetry.traces import REQUEST_ID, Span, Status, Trace

SPECULATION = "slipstream.speculation."
_FIRST_TOKEN_S = "gen_ai.response.time_to_first_chunk"


@dataclass(frozen=True, slots=True)
class Part:
    """Where some of the time went."""

    name: str
    duration_ms: float
    share: float
    """Of the request's wall time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A request in short."""

    facts: tuple[tuple[str, str], ...]
    """What, and its value."""
    parts: tuple[Part, ...]
    """Stages of the request, and what is left as `unexplained`."""
    explained: float
    sentences: tuple[str, ...]
    links: tuple[str, ...]


def summary(trace: Trace) -> Summary:
    """What there is to say."""
    return Summary(
        facts=tuple(_facts(trace)),
        parts=tuple(_parts(trace)),
        explained=explained(trace),
        sentences=(*_speculation(trace), *_continuity(trace), *_errors(trace), *_missing(trace)),
        links=tuple(_links(trace)),
    )


def _facts(trace: Trace) -> Iterator[tuple[str, str]]:
    request, said = trace.request, trace.request.attributes
    yield "request", value_text(said.get(REQUEST_ID, "unknown"))
    yield "trace", request.trace_id
    if model := said.get("gen_ai.response.model", said.get("gen_ai.request.model")):
        yield "model", value_text(model)
    counts = [
        f"{value_text(said[key])} {what}"
        for key, what in (
            ("gen_ai.usage.input_tokens", "in"),
            ("gen_ai.usage.output_tokens", "out"),
            ("gen_ai.usage.cache_read.input_tokens", "cached"),
        )
        if key in said
    ]
    if counts:
        yield "tokens", ", ".join(counts)
    if reasons := said.get("gen_ai.response.finish_reasons"):
        yield "finished by", value_text(reasons)
    yield "wall time", f"{request.duration_ms:.1f} ms"
    first = said.get(_FIRST_TOKEN_S)
    if isinstance(first, int | float):
        yield "first token after", f"{first * 1000:.1f} ms"


def _parts(trace: Trace) -> Iterator[Part]:
    wall_ms = trace.request.duration_ms
    if wall_ms <= 0:
        return
    told_ms = 0.0
    for stage in stages(trace.request):
        told_ms += stage.duration_ms
        yield Part(printable(stage.name), stage.duration_ms, stage.duration_ms / wall_ms)
    rest = 1 - explained(trace)
    if told_ms and rest > 0:
        yield Part("unexplained", rest * wall_ms, rest)


def _speculation(trace: Trace) -> Iterator[str]:
    """Why speculation did or did not help."""
    said = trace.request.attributes
    steps, plain = (_count(said.get(SPECULATION + name)) for name in ("steps", "plain_steps"))
    if steps:
        yield from _what_drafting_gave(trace, steps, plain or 0)
    elif plain:
        yield f"Nothing was drafted: all {_times(plain, 'round')} after the prompt were plain."
    if fallbacks := _by_reason(trace, "slipstream.fallbacks."):
        times = _times(sum(fallbacks.values()), "round")
        yield f"In {times} no draft answered ({_told(fallbacks)})."
    if stops := _by_reason(trace, "slipstream.stops."):
        yield f"Drafting was ended by {_told(stops)}."
    if said.get(SPECULATION + "lossless") is False:
        yield "Its verification is not lossless: the text may be another than without a draft."


def _what_drafting_gave(trace: Trace, steps: int, plain: int) -> Iterator[str]:
    said = trace.request.attributes
    drafted, accepted = (
        _count(said.get(f"{SPECULATION}{name}_tokens")) for name in ("draft", "accepted")
    )
    length = said.get(SPECULATION + "acceptance_length")
    if not isinstance(length, int | float):
        length = 1 + (accepted or 0) / steps
    others = f", {_times(plain, 'plain round')} one each" if plain else ""
    yield f"{_times(steps, 'round')} with a draft gave {length:.2f} tokens each{others}."
    if drafted is not None and accepted is not None:
        share = accepted / max(1, drafted)
        yield f"Of {_times(drafted, 'draft token')} {accepted} were accepted ({share:.0%})."
    if rejected := _count(said.get("slipstream.speculation.rejected_steps", 0)):
        yield f"{_times(rejected, 'round')} kept nothing of what was drafted."
    yield from _whether_it_paid(trace, steps + plain, steps * length + plain)


def _whether_it_paid(trace: Trace, rounds: int, tokens: float) -> Iterator[str]:
    """A token's time against that of a plain round, which gives one."""
    spent = {stage.name: stage.duration_ms for stage in stages(trace.request)}
    draft_ms, verify_ms = spent.get("draft", 0.0), spent.get("verify", 0.0)
    if not verify_ms:
        return
    each_ms = (draft_ms + verify_ms) / tokens
    yield (
        f"A round waited {draft_ms / rounds:.1f} ms for its draft and {verify_ms / rounds:.1f} ms "
        f"for its target, {each_ms:.1f} ms a token: {_verdict(_plain_ms(trace), each_ms)}."
    )
    if draft_ms > verify_ms:
        yield "Most of a round was spent waiting for the draft, not for the target."


def _verdict(plain_ms: float | None, each_ms: float) -> str:
    if plain_ms is None:
        return "speculation helped if a plain round takes longer than that"
    helped = "helped" if each_ms < plain_ms else "did not help"
    return f"plain rounds took {plain_ms:.1f} ms, so speculation {helped}"


def _plain_ms(trace: Trace) -> float | None:
    """How long a plain round took then, as the router knew it; None where it did not."""
    known = trace.request.attributes.get("slipstream.speculation.plain_round_ms")
    return known if isinstance(known, float) else None


def _by_reason(trace: Trace, prefix: str) -> Counter[str]:
    said = trace.request.attributes
    told = {key.removeprefix(prefix): _count(said[key]) for key in said if key.startswith(prefix)}
    return Counter({reason: count for reason, count in told.items() if count})


def _continuity(trace: Trace) -> Iterator[str]:
    said = trace.request.attributes
    losses, resumed, unkept = (
        _count(said.get(f"slipstream.continuity.{name}"))
        for name in ("target_losses", "resumed_tokens", "unkept_tokens")
    )
    if losses:
        yield f"It lost its target {_times(losses, 'time')} and went on with another one."
    if resumed:
        yield f"It took up {_times(resumed, 'token')} of an earlier attempt."
    if unkept:
        yield f"{_times(unkept, 'token')} were sent before the session store had kept them."


def _errors(trace: Trace) -> Iterator[str]:
    for span in trace.spans:
        if span.status is Status.ERROR:
            kind = value_text(span.attributes.get("error.type", "an error"))
            text = f": {printable(span.error)}" if span.error else ""
            yield f"{name_of(span)} of {service_of(span)} ended in {kind}{text}."


def _missing(trace: Trace) -> Iterator[str]:
    lost = [span for span in orphans(trace) if span is not trace.request]
    if lost:
        yield (
            f"{_times(len(lost), 'span')} hang in the air: what they are a part of has not been "
            "written to these files, or not yet."
        )
    if trace.request in orphans(trace):
        yield "Whoever asked keeps the span of the call elsewhere."


def _links(trace: Trace) -> Iterator[str]:
    by_id = {span.span_id: span for span in trace.spans}
    pairs: Counter[tuple[str, str]] = Counter(
        (name_of(span), _linked(by_id.get(link.span_id), link.span_id))
        for span in trace.spans
        for link in span.links
    )
    for (name, other), count in pairs.items():
        times = f" ({count} times)" if count > 1 else ""
        yield f"{name} -> {other}{times}"


def _linked(span: Span | None, span_id: str) -> str:
    if span is None:
        return f"span {span_id}, which is not in this trace"
    return f"{name_of(span)} of {service_of(span)}"


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{printable(reason)} {count}x" for reason, count in counts.most_common())


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_count else None
