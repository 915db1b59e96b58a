"""Traces as plain values, without OpenTelemetry: read from files of OTLP/JSON lines, and chosen by
request."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.files import read_bytes

REQUEST_ID = "gen_ai.response.id"
_REQUESTS = "slipstream.rpc.v1.GenerationService/Generate"
_STAGE_PREFIX, _STAGE_SUFFIX = "slipstream.stage.", "_ms"
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")
"""Names in the order of OTLP's numbers."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span. Ids are in hex; times are nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    """Side of a call that it is of, if any: server, client, internal."""
    service: str
    """Name of its service, such as slipstream-router."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: str = "unset"
    error: str | None = None

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6

    @property
    def has_failed(self) -> bool:
        return self.status == "error"

    @property
    def is_request(self) -> bool:
        """Return whether it is a router's span of a whole request."""
        return self.kind == "server" and self.name.startswith(_REQUESTS)


@dataclass(frozen=True, slots=True)
class Trace:
    """A request, the spans that it is a part of, and all below it."""

    request: Span
    spans: tuple[Span, ...]
    """Each after its parent, in order of beginning; the outermost is the first."""
    depths: tuple[int, ...]
    orphans: tuple[str, ...]
    """Ids of spans whose parent is not in the files: it is missing, or not there yet."""

    def stages(self) -> dict[str, float]:
        """Return the request's stages in milliseconds, in the order in which each first ended.

        They are totals over all rounds, and no two of them count the same moment.
        """
        return {
            key.removeprefix(_STAGE_PREFIX).removesuffix(_STAGE_SUFFIX): float(value)
            for key, value in self.request.attributes.items()
            if key.startswith(_STAGE_PREFIX) and key.endswith(_STAGE_SUFFIX)
            if isinstance(value, int | float)
        }


def printable(text: str) -> str:
    """Return the text with escapes for line ends, control and invisible characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def find_trace(spans: Iterable[Span], request_id: str | None) -> Trace | None:
    """Return the trace of a request's last attempt; without an id, of what ended last."""
    spans = tuple(spans)
    requests = [span for span in spans if span.is_request]
    if request_id is not None:
        requests = [span for span in requests if span.attributes.get(REQUEST_ID) == request_id]
    if not requests:
        return None
    request = max(requests, key=lambda span: span.end_ns)
    known = {span.span_id: span for span in spans if span.trace_id == request.trace_id}
    top, above = request, {request.span_id}
    while top.parent_id in known and top.parent_id not in above:
        top = known[top.parent_id]
        above.add(top.span_id)
    # A caller may send several requests within one trace of its own.
    same = [span for span in known.values() if span.span_id in above or not span.is_request]
    orphans = [span.span_id for span in same if span.parent_id and span.parent_id not in known]
    found, depths = zip(*_tree(top, same).values(), strict=True)
    return Trace(request, found, depths, tuple(orphans))


def _tree(top: Span, spans: list[Span]) -> dict[str, tuple[Span, int]]:
    """Return a span and those below it, depth first, by id, each with its depth."""
    children: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (-span.start_ns, span.end_ns)):
        children.setdefault(span.parent_id, []).append(span)
    tree: dict[str, tuple[Span, int]] = {}
    waiting = [(top, 0)]
    while waiting:
        span, depth = waiting.pop()
        if span.span_id not in tree:  # files may hold circles
            tree[span.span_id] = (span, depth)
            waiting += [(child, depth + 1) for child in children.get(span.span_id, [])]
    return tree


def read_spans(directory: Path) -> list[Span]:
    """Return every span in the directory's *.jsonl files, in order of writing within each.

    A last line that is only half written is left out. Raises `InvalidRequest` for a file that can't
    be read, and for a line that is no line of traces.
    """
    return [span for file in sorted(directory.glob("*.jsonl")) for span in _spans_of(file)]


def _spans_of(file: Path) -> Iterator[Span]:
    try:
        lines = read_bytes(file).split(b"\n")
    except InvalidRequest:
        if not file.exists():  # renamed since it was listed
            return
        raise
    for number, line in enumerate(lines, start=1):
        try:
            yield from spans_in(json.loads(line.strip() or b"{}"))
        except _BROKEN as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                return  # it is being written
            what = f"{type(error).__name__}: {error}"
            raise InvalidRequest(
                f"line {number} of {file} holds no traces in OTLP/JSON ({what})"
            ) from None


def spans_in(data: Any) -> Iterator[Span]:
    """Return the spans of a TracesData message in OTLP/JSON. Raises for anything else."""
    for resource in data.get("resourceSpans", ()):
        service = str(_attributes(resource.get("resource", {})).get("service.name", "unknown"))
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield _span(span, service)


def _span(values: Mapping[str, Any], service: str) -> Span:
    status = values.get("status", {})
    return Span(
        trace_id=_id(values["traceId"]),
        span_id=_id(values["spanId"]),
        parent_id=_id(values.get("parentSpanId") or "") or None,
        name=str(values.get("name", "")),
        kind=_KINDS[values.get("kind", 0)],
        service=service,
        start_ns=int(values["startTimeUnixNano"]),
        end_ns=int(values["endTimeUnixNano"]),
        attributes=_attributes(values),
        status=_STATUSES[status.get("code", 0)],
        error=status.get("message") or None,
    )


def _id(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"an id is {type(value).__name__}, not text")
    return value


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    items = values.get("attributes", ())
    return {str(item["key"]): _value(item.get("value", {})) for item in items}


def _value(value: Mapping[str, Any]) -> Any:
    """Return the value; None for one of another kind than services write."""
    for kind, held in value.items():
        if kind == "arrayValue":
            return tuple(_value(item) for item in held.get("values", ()))
        if kind in _READERS:
            return _READERS[kind](held)
    return None


_BROKEN = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""Errors of reading a line that holds something else."""
_READERS = {"stringValue": str, "boolValue": bool, "intValue": int, "doubleValue": float}
