"""A request's trace for people: a summary in sentences, and an HTML page with a row for each span.

Names and attributes are whatever was written in a file: unprintable characters become escapes. The
page's template escapes every value, and the page's own policy forbids it to load or run anything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.telemetry.traces import REQUEST_ID, Span, Trace, printable

_SPECULATION = "slipstream.speculation."
_USAGE = {"input_tokens": "in", "output_tokens": "out", "cache_read.input_tokens": "cached"}
_SERVICES = ("client", "router", "draft", "target")
_OURS = "slipstream."
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

    facts: Mapping[str, str]
    parts: tuple[StageShare, ...]
    explained: float
    sentences: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the summary as lines of text."""
        for name, value in self.facts.items():
            yield f"{name:<19}{value}"
        yield "\nwhere the time went"
        for part in self.parts:
            yield f"  {part.name:<17}{part.duration_ms:9.1f} ms {part.share:6.1%}"
        yield f"{self.explained:.1%} of the wall time is accounted for.\n"
        yield from self.sentences


def summary(trace: Trace) -> Summary:
    """Return the summary of a trace."""
    sentences = (*_speculation(trace), *_faults(trace))
    wall_ms, explained = trace.request.duration_ms, trace.explained()
    spent = trace.stages() if wall_ms > 0 else {}
    if spent and explained < 1:
        spent["unexplained"] = (1 - explained) * wall_ms
    parts = (StageShare(printable(name), ms, ms / wall_ms) for name, ms in spent.items())
    return Summary(dict(_facts(trace.request)), tuple(parts), explained, sentences)


def _facts(request: Span) -> Iterator[tuple[str, str]]:
    about = request.attributes
    yield "request", value_text(about.get(REQUEST_ID, "unknown"))
    yield "trace", printable(request.trace_id)
    if model := about.get("gen_ai.response.model", about.get("gen_ai.request.model")):
        yield "model", value_text(model)
    counts = {what: about.get(f"gen_ai.usage.{name}") for name, what in _USAGE.items()}
    yield "tokens", ", ".join(f"{value_text(n)} {what}" for what, n in counts.items() if n)
    if reasons := about.get("gen_ai.response.finish_reasons"):
        yield "finished by", value_text(reasons)
    yield "wall time", f"{request.duration_ms:.1f} ms"
    if first_s := _number(about, "gen_ai.response.time_to_first_chunk"):
        yield "first token after", f"{first_s * 1000:.1f} ms"


def _speculation(trace: Trace) -> Iterator[str]:
    about = trace.request.attributes
    names = ("steps", "plain_steps", "draft_tokens", "accepted_tokens")
    steps, plain, drafted, accepted = (int(_number(about, _SPECULATION + name)) for name in names)
    if steps:
        length = _number(about, _SPECULATION + "acceptance_length") or 1 + accepted / steps
        others = f", {_times(plain, 'plain round')} one each" if plain else ""
        yield f"{_times(steps, 'round')} with a draft gave {length:.2f} tokens each{others}."
        share = accepted / max(drafted, 1)
        yield f"Of {_times(drafted, 'draft token')} {accepted} were accepted ({share:.0%})."
        yield from _paid(trace, steps + plain, steps * length + plain)
    elif plain:
        yield f"Nothing was drafted: all {_times(plain, 'round')} after the prompt were plain."
    if fallbacks := _by_reason(about, "slipstream.fallbacks."):
        times = _times(sum(fallbacks.values()), "round")
        yield f"In {times} no draft answered ({_counted(fallbacks)})."
    if stops := _by_reason(about, "slipstream.stops."):
        yield f"Drafting was ended by {_counted(stops)}."


def _paid(trace: Trace, rounds: int, tokens: float) -> Iterator[str]:
    draft_ms, verify_ms = (trace.stages().get(stage, 0.0) for stage in ("draft", "verify"))
    if not verify_ms:
        return
    each_ms = (draft_ms + verify_ms) / tokens
    verdict = "speculation helped if a plain round takes longer than that"
    if plain_ms := _number(trace.request.attributes, _SPECULATION + "plain_round_ms"):
        helped = "helped" if each_ms < plain_ms else "did not help"
        verdict = f"plain rounds took {plain_ms:.1f} ms, so speculation {helped}"
    waits = (
        f"{draft_ms / rounds:.1f} ms for its draft and {verify_ms / rounds:.1f} ms for its target"
    )
    yield f"A round waited {waits}, {each_ms:.1f} ms a token: {verdict}."


def _faults(trace: Trace) -> Iterator[str]:
    for span in trace.spans:
        if span.has_failed:
            yield f"{name_of(span)} of {service_of(span)} ended in {error_text(span)}."
    if trace.orphans:
        yield f"{_times(len(trace.orphans), 'span')} have parents that are not in these files."


def _number(about: Attributes, name: str) -> float:
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
    return f"{kind}: {printable(str(span.error))}" if span.error else kind


@dataclass(frozen=True, slots=True)
class Row:
    """A span and its place: its bar begins at `left`, and both shares are of the axis, 0 to 1."""

    span: Span
    depth: int
    offset_ms: float
    """Time from the beginning of the axis; negative for what had begun before."""
    left: float
    width: float


def rows(trace: Trace) -> list[Row]:
    """Return a row per span. The axis is as long as the outermost span and the request."""
    start_ns, end_ns = _axis(trace)

    def row(span: Span, depth: int) -> Row:
        places = (
            (it - start_ns) / max(end_ns - start_ns, 1) for it in (span.start_ns, span.end_ns)
        )
        left, right = (min(max(place, 0.0), 1.0) for place in places)
        return Row(span, depth, (span.start_ns - start_ns) / 1e6, left, right - left)

    return [row(*each) for each in zip(trace.spans, trace.depths, strict=True)]


def page(trace: Trace) -> str:
    """Return the page, which loads and runs nothing."""
    from jinja2 import Environment, PackageLoader  # an installation of the client has none

    templates = Environment(
        loader=PackageLoader("slipstream", "data"),
        autoescape=True,
        finalize=value_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"name": name_of, "service": service_of, "about": _about}
    start_ns, end_ns = _axis(trace)
    return templates.get_template("trace.html").render(
        request_id=trace.request.attributes.get(REQUEST_ID, "unknown"),
        summary=summary(trace),
        rows=rows(trace),
        services=dict.fromkeys(map(service_of, trace.spans)),
        known=_SERVICES,
        ticks=[(end_ns - start_ns) / 1e6 * quarter / 4 for quarter in range(5)],
    )


def _axis(trace: Trace) -> tuple[int, int]:
    top, request = trace.spans[0], trace.request
    return min(top.start_ns, request.start_ns), max(top.end_ns, request.end_ns)


def _about(span: Span) -> list[str]:
    """Return a span's error and our own attributes, but for the totals of a request."""
    said = [error_text(span)] if span.has_failed else []
    for key, value in span.attributes.items():
        if value and key.startswith(_OURS) and not span.is_request:
            unit = " ms" if key.endswith("_ms") else ""
            name = key.rpartition(".")[2].removesuffix("_ms").replace("_", " ")
            said.append(f"{name} {value_text(value)}{unit}")
    return said
