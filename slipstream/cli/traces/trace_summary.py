"""The summary of a request's trace: figures, where the time went, and the effect of speculation.

Names and attributes are whatever was written in a file: unprintable characters become escapes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.telemetry.traces import REQUEST_ID, Span, Status, Trace

_SPECULATION = "slipstream.speculation."
_CONTINUITY = {
    "target_losses": ("time", "It lost its target {} and went on with another one."),
    "resumed_tokens": ("token", "It took up {} of an earlier attempt."),
    "unkept_tokens": ("token", "{} were sent before the session store had kept them."),
}
Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StageShare:
    """A stage of the request, or the rest as `unexplained`; `share` is that of the wall time."""

    name: str
    duration_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A request in short."""

    facts: tuple[tuple[str, str], ...]
    parts: tuple[StageShare, ...]
    explained: float
    sentences: tuple[str, ...]


def summary(trace: Trace) -> Summary:
    """Return the summary of a trace."""
    about = trace.request.attributes
    sentences = (*_speculation(trace), *_continuity(about), *_faults(trace))
    return Summary(tuple(_facts(trace.request)), tuple(_parts(trace)), trace.explained(), sentences)


def _facts(request: Span) -> Iterator[tuple[str, str]]:
    about = request.attributes
    yield "request", value_text(about.get(REQUEST_ID, "unknown"))
    yield "trace", request.trace_id
    if model := about.get("gen_ai.response.model", about.get("gen_ai.request.model")):
        yield "model", value_text(model)
    usage = {"input_tokens": "in", "output_tokens": "out", "cache_read.input_tokens": "cached"}
    counts = {what: about.get(f"gen_ai.usage.{name}") for name, what in usage.items()}
    yield "tokens", ", ".join(f"{value_text(n)} {what}" for what, n in counts.items() if n)
    if reasons := about.get("gen_ai.response.finish_reasons"):
        yield "finished by", value_text(reasons)
    yield "wall time", f"{request.duration_ms:.1f} ms"
    if first_s := _number(about, "gen_ai.response.time_to_first_chunk"):
        yield "first token after", f"{first_s * 1000:.1f} ms"


def _parts(trace: Trace) -> Iterator[StageShare]:
    wall_ms, found, rest = trace.request.duration_ms, trace.stages(), 1 - trace.explained()
    if wall_ms <= 0 or not found:
        return
    for name, spent_ms in found.items():
        yield StageShare(printable(name), spent_ms, spent_ms / wall_ms)
    if rest > 0:
        yield StageShare("unexplained", rest * wall_ms, rest)


def _speculation(trace: Trace) -> Iterator[str]:
    about = trace.request.attributes
    steps, plain = (int(_number(about, _SPECULATION + name)) for name in ("steps", "plain_steps"))
    if steps:
        yield from _drafted(trace, steps, plain)
    elif plain:
        yield f"Nothing was drafted: all {_times(plain, 'round')} after the prompt were plain."
    if fallbacks := _by_reason(about, "slipstream.fallbacks."):
        times = _times(sum(fallbacks.values()), "round")
        yield f"In {times} no draft answered ({_counted(fallbacks)})."
    if stops := _by_reason(about, "slipstream.stops."):
        yield f"Drafting was ended by {_counted(stops)}."
    if about.get(_SPECULATION + "lossless") is False:
        yield "Its verification is not lossless: the text may be another than without a draft."


def _drafted(trace: Trace, steps: int, plain: int) -> Iterator[str]:
    about = trace.request.attributes
    drafted, accepted, rejected = (
        int(_number(about, _SPECULATION + name))
        for name in ("draft_tokens", "accepted_tokens", "rejected_steps")
    )
    length = _number(about, _SPECULATION + "acceptance_length") or 1 + accepted / steps
    others = f", {_times(plain, 'plain round')} one each" if plain else ""
    yield f"{_times(steps, 'round')} with a draft gave {length:.2f} tokens each{others}."
    share = accepted / max(drafted, 1)
    yield f"Of {_times(drafted, 'draft token')} {accepted} were accepted ({share:.0%})."
    if rejected:
        yield f"{_times(rejected, 'round')} kept nothing of what was drafted."
    spent = trace.stages()
    draft_ms, verify_ms = spent.get("draft", 0.0), spent.get("verify", 0.0)
    if verify_ms:
        each_ms = (draft_ms + verify_ms) / (steps * length + plain)
        waits = [f"{ms / (steps + plain):.1f} ms for its" for ms in (draft_ms, verify_ms)]
        verdict = "speculation helped if a plain round takes longer than that"
        if plain_ms := _number(about, _SPECULATION + "plain_round_ms"):
            helped = "helped" if each_ms < plain_ms else "did not help"
            verdict = f"plain rounds took {plain_ms:.1f} ms, so speculation {helped}"
        places = f"{waits[0]} draft and {waits[1]} target, {each_ms:.1f} ms a token"
        yield f"A round waited {places}: {verdict}."


def _continuity(about: Attributes) -> Iterator[str]:
    for name, (what, sentence) in _CONTINUITY.items():
        if count := int(_number(about, f"slipstream.continuity.{name}")):
            yield sentence.format(_times(count, what))


def _faults(trace: Trace) -> Iterator[str]:
    """Yield the errors of spans, and the spans that are missing."""
    for span in trace.spans:
        if span.status is Status.ERROR:
            yield f"{name_of(span)} of {service_of(span)} ended in {error_text(span)}."
    if lost := [span for span in trace.orphans if span != trace.request.span_id]:
        yield f"{_times(len(lost), 'span')} have parents that are not in these files, or not yet."
    if trace.request.span_id in trace.orphans:
        yield "The span of the caller is kept elsewhere."


def _number(about: Attributes, name: str) -> float:
    """Return a number, or 0 where there is none."""
    value = about.get(name)
    return value if isinstance(value, int | float) else 0


def _by_reason(about: Attributes, prefix: str) -> Counter[str]:
    keys = (key for key in about if key.startswith(prefix))
    return Counter({key.removeprefix(prefix): int(_number(about, key)) for key in keys})


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{printable(reason)} {count}x" for reason, count in counts.most_common())


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def name_of(span: Span) -> str:
    """Return a span's name without its package; rounds have their number."""
    index = span.attributes.get("slipstream.round.index")
    if span.name == "round" and index is not None:
        return f"round {value_text(index)}"
    return printable(span.name.removeprefix("slipstream.rpc.v1."))


def service_of(span: Span) -> str:
    """Return the service that a span is of."""
    return printable(span.service.removeprefix("slipstream-"))


def printable(text: str) -> str:
    """Return the text with escapes for characters that a terminal might obey."""
    return "".join(at if at.isprintable() else ascii(at)[1:-1] for at in text)


def value_text(value: Any) -> str:
    """Return an attribute's value on one line."""
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ", ".join(map(value_text, value))
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return printable(str(value))


def error_text(span: Span) -> str:
    """Return the type of a failed span's error, and its message if there is one."""
    kind = value_text(span.attributes.get("error.type", "an error"))
    return f"{kind}: {printable(span.error)}" if span.error else kind
