"""The summary of a request's trace: figures, where the time went, and the effect of speculation.

Only what the trace holds is stated.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.cli.traces.trace_waterfall import (
    error_text,
    name_of,
    printable,
    service_of,
    value_text,
)
from slipstream.telemetry.traces import REQUEST_ID, Span, Status, Trace

_SPECULATION = "slipstream.speculation."
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
    links: tuple[str, ...]


def summary(trace: Trace) -> Summary:
    """Return the summary of a trace."""
    about = trace.request.attributes
    sentences = (*_speculation(trace), *_continuity(about), *_errors(trace), *_missing(trace))
    return Summary(
        tuple(_facts(trace.request)),
        tuple(_parts(trace)),
        trace.explained(),
        sentences,
        tuple(_links(trace)),
    )


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
    wall_ms, found = trace.request.duration_ms, trace.stages()
    if wall_ms <= 0 or not found:
        return
    for stage in found:
        yield StageShare(printable(stage.name), stage.duration_ms, stage.duration_ms / wall_ms)
    rest = 1 - trace.explained()
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
    spent = {stage.name: stage.duration_ms for stage in trace.stages()}
    draft_ms, verify_ms = spent.get("draft", 0.0), spent.get("verify", 0.0)
    if verify_ms:
        each_ms = (draft_ms + verify_ms) / (steps * length + plain)
        waits = [f"{ms / (steps + plain):.1f} ms for its" for ms in (draft_ms, verify_ms)]
        yield (
            f"A round waited {waits[0]} draft and {waits[1]} target, {each_ms:.1f} ms a token:"
            f" {_verdict(_number(about, _SPECULATION + 'plain_round_ms'), each_ms)}."
        )


def _verdict(plain_ms: float, each_ms: float) -> str:
    """Compare a token's time with that of a plain round, as the router knew it."""
    if not plain_ms:
        return "speculation helped if a plain round takes longer than that"
    helped = "helped" if each_ms < plain_ms else "did not help"
    return f"plain rounds took {plain_ms:.1f} ms, so speculation {helped}"


def _continuity(about: Attributes) -> Iterator[str]:
    losses, resumed, unkept = (
        int(_number(about, f"slipstream.continuity.{name}"))
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
            yield f"{name_of(span)} of {service_of(span)} ended in {error_text(span)}."


def _missing(trace: Trace) -> Iterator[str]:
    found = trace.orphans()
    lost = [span for span in found if span is not trace.request]
    if lost:
        yield f"{_times(len(lost), 'span')} have parents that are not in these files, or not yet."
    if trace.request in found:
        yield "The span of the caller is kept elsewhere."


def _links(trace: Trace) -> Iterator[str]:
    by_id = {span.span_id: span for span in trace.spans}
    pairs: Counter[str] = Counter()
    for span in trace.spans:
        for link in span.links:
            other = by_id.get(link.span_id)
            where = "another trace" if other is None else f"{name_of(other)} of {service_of(other)}"
            pairs[f"{name_of(span)} -> {where}"] += 1
    yield from (f"{pair} ({count} times)" if count > 1 else pair for pair, count in pairs.items())


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
