"""`slipstream trace`: where the time of one request went, from the files that services keep.

A summary in sentences, or an HTML page with a row for each span. Names and attributes are whatever
was written in a file: unprintable characters become escapes. The page's template escapes every
value, and the page's own policy forbids it to load or run anything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from slipstream.cli.flags import with_flags
from slipstream.config import traces_dir
from slipstream.core.errors import InvalidRequest
from slipstream.files import write_whole
from slipstream.options import option
from slipstream.telemetry.traces import REQUEST_ID, Span, Trace, find_trace, printable, read_spans

_HOW = "`slipstream up` keeps them, and so does any service with --traces file:DIR"
_SPECULATION = "slipstream.speculation."
_USAGE = {"input_tokens": "in", "output_tokens": "out", "cache_read.input_tokens": "cached"}
_SERVICES = ("client", "router", "draft", "target")
Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """The request to show, and how it is shown."""

    request_id: str | None = option(
        None, "ID of the request, which answers and logs have.", is_argument=True
    )
    last: bool = option(False, "The request that ended last.")
    dir: Path | None = option(
        None, "Directory of trace files.", show_default="where `slipstream up` keeps them"
    )
    html: Path | None = option(None, "Write a page to this file, in place of the terminal.")

    def __post_init__(self) -> None:
        if self.last and self.request_id is not None:
            raise InvalidRequest(f"both request {self.request_id} and --last are asked for")
        if not self.last and self.request_id is None:
            raise InvalidRequest("say which request: its id, or --last")


@with_flags
def trace(flags: TraceFlags) -> None:
    """Show where the time of a request went, and what speculation did for it."""
    found = _found(flags.dir or traces_dir(), flags.request_id)
    if flags.html is not None:
        write_whole(flags.html, page(found).encode(errors="replace"), mode=0o644)
        typer.echo(f"written to {flags.html}")
        return
    typer.echo("\n".join(summary(found).lines()))


def _found(directory: Path, wanted: str | None) -> Trace:
    if not directory.is_dir():
        raise InvalidRequest(f"there are no traces at {directory}: {_HOW}")
    found = find_trace(read_spans(directory), wanted)
    if found is not None:
        return found
    if wanted is None:
        raise InvalidRequest(f"no request has left a trace in {directory} yet: {_HOW}")
    raise InvalidRequest(
        f"{directory} has no trace of request {wanted!r}: it was not sampled, has not ended, or"
        f" its trace is gone with older ones; {_HOW}"
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """A request in short; `explained` is the share of the wall time that its stages are. `parts`
    are its stages, and the rest as `unexplained`: name, milliseconds, share of the wall time."""

    facts: Mapping[str, str]
    parts: tuple[tuple[str, float, float], ...]
    explained: float
    sentences: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        for name, value in self.facts.items():
            yield f"{name:<19}{value}"
        yield "\nwhere the time went"
        for name, duration_ms, share in self.parts:
            yield f"  {name:<17}{duration_ms:9.1f} ms {share:6.1%}"
        yield f"{self.explained:.1%} of the wall time is accounted for.\n"
        yield from self.sentences


def summary(trace: Trace) -> Summary:
    wall_ms, explained = trace.request.duration_ms, 1.0
    spent = trace.stages() if wall_ms > 0 else {}
    if wall_ms > 0 and (explained := min(sum(spent.values()) / wall_ms, 1.0)) < 1 and spent:
        spent["unexplained"] = (1 - explained) * wall_ms
    parts = ((printable(name), ms, ms / wall_ms) for name, ms in spent.items())
    sentences = (*_speculation(trace), *_faults(trace))
    return Summary(dict(_facts(trace.request)), tuple(parts), explained, sentences)


def _facts(request: Span) -> Iterator[tuple[str, str]]:
    about = request.attributes
    yield "request", _text(about.get(REQUEST_ID, "unknown"))
    yield "trace", printable(request.trace_id)
    if model := about.get("gen_ai.response.model", about.get("gen_ai.request.model")):
        yield "model", _text(model)
    counts = {what: about.get(f"gen_ai.usage.{name}") for name, what in _USAGE.items()}
    yield "tokens", ", ".join(f"{_text(n)} {what}" for what, n in counts.items() if n)
    if reasons := about.get("gen_ai.response.finish_reasons"):
        yield "finished by", _text(reasons)
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
            yield f"{_name(span)} of {_service(span)} ended in {_error(span)}."
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


def _name(span: Span) -> str:
    """Return a span's name without its package; rounds have their number."""
    index = span.attributes.get("slipstream.round.index")
    if span.name == "round" and index is not None:
        return f"round {_text(index)}"
    return printable(span.name.removeprefix("slipstream.rpc.v1."))


def _service(span: Span) -> str:
    return printable(span.service.removeprefix("slipstream-"))


def _text(value: Any) -> str:
    """Return an attribute's value on one line."""
    match value:
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ", ".join(map(_text, value))
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"
    return printable(str(value))


def _error(span: Span) -> str:
    """Return the type of a failed span's error, and its message if there is one."""
    kind = _text(span.attributes.get("error.type", "an error"))
    return f"{kind}: {printable(str(span.error))}" if span.error else kind


def _about(span: Span) -> str:
    """Return a span's error and our own attributes, but for the totals of a request."""
    parts = [_error(span)] if span.has_failed else []
    for key, value in span.attributes.items():
        if value and key.startswith("slipstream.") and not span.is_request:
            unit = " ms" if key.endswith("_ms") else ""
            name = key.rpartition(".")[2].removesuffix("_ms").replace("_", " ")
            parts.append(f"{name} {_text(value)}{unit}")
    return ", ".join(parts)


def page(trace: Trace) -> str:
    """Return the page, which loads and runs nothing. Its axis is as long as the outermost span and
    the request."""
    from jinja2 import Environment, PackageLoader  # an installation of the client has none

    templates = Environment(
        loader=PackageLoader("slipstream", "data"),
        autoescape=True,
        finalize=_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"name": _name, "service": _service, "about": _about}
    top, request = trace.spans[0], trace.request
    start_ns = min(top.start_ns, request.start_ns)
    return templates.get_template("trace.html").render(
        request_id=request.attributes.get(REQUEST_ID, "unknown"),
        summary=summary(trace),
        spans=zip(trace.spans, trace.depths, strict=True),
        services=dict.fromkeys(map(_service, trace.spans)),
        known=_SERVICES,
        start_ns=start_ns,
        length_ns=max(top.end_ns - start_ns, request.end_ns - start_ns, 1),
    )
