"""Traces as plain values: read from files of OTLP/JSON lines, and chosen by request.

Needs no OpenTelemetry.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest

REQUEST_ID = "gen_ai.response.id"
_REQUESTS = "slipstream.rpc.v1.GenerationService/Generate"
_STAGES = (
    *("enter", "acquire", "encode", "prefill", "draft"),
    *("verify", "between", "settle", "park", "close"),
)
"""Stages in the order of a request."""
_STAGE_PREFIX, _STAGE_SUFFIX = "slipstream.stage.", "_ms"


class SpanKind(StrEnum):
    """The side of a call that a span is of, if any; in the order of OTLP's numbers."""

    UNSPECIFIED = "unspecified"
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Status(StrEnum):
    """The way a span ended, in the order of OTLP's numbers."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


_KINDS, _STATUSES = tuple(SpanKind), tuple(Status)


@dataclass(frozen=True, slots=True)
class Link:
    """A related span, of the same or another trace."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A span. Ids are in hex; times are nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: SpanKind
    service: str
    """Name of its service, such as slipstream-router."""
    process: str
    """Process of that service."""
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    status: Status = Status.UNSET
    error: str | None = None
    """Message of the status."""

    @property
    def duration_ms(self) -> float:
        """Duration in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6

    @property
    def is_request(self) -> bool:
        """Return whether it is a router's span of a whole request."""
        return self.kind is SpanKind.SERVER and self.name.startswith(_REQUESTS)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a request's time, over all rounds."""

    name: str
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A request and all spans that belong to it, in order of beginning."""

    request: Span
    """Router's span of the request."""
    spans: tuple[Span, ...]

    def children(self) -> dict[str, list[Span]]:
        """Return spans by the id of their parent, in order."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            if span.parent_id is not None:
                found.setdefault(span.parent_id, []).append(span)
        return found

    def tops(self) -> list[Span]:
        """Return spans without a parent, and those whose parent is not known."""
        ids = {span.span_id for span in self.spans}
        return [span for span in self.spans if span.parent_id not in ids]

    def orphans(self) -> tuple[Span, ...]:
        """Return spans whose parent is not in the trace: it is missing, or not there yet."""
        return tuple(span for span in self.tops() if span.parent_id is not None)

    def descendants(self, of: Span) -> list[Span]:
        """Return children, their children and so on, in no particular order."""
        children, waiting = self.children(), [of]
        found: dict[str, Span] = {}
        while waiting:
            below = children.get(waiting.pop().span_id, [])
            waiting += (span for span in below if span.span_id not in found)
            found |= {span.span_id: span for span in below}
        return list(found.values())

    def stages(self) -> tuple[Stage, ...]:
        """Return the request's stages; unknown ones come last.

        They are totals over all rounds, and no two of them count the same moment.
        """
        found = {
            key.removeprefix(_STAGE_PREFIX).removesuffix(_STAGE_SUFFIX): float(value)
            for key, value in self.request.attributes.items()
            if key.startswith(_STAGE_PREFIX) and key.endswith(_STAGE_SUFFIX)
            if isinstance(value, int | float)
        }
        names = [*(name for name in _STAGES if name in found), *sorted(found.keys() - set(_STAGES))]
        return tuple(Stage(name, found[name]) for name in names)

    def explained(self) -> float:
        """Return the share of the request's wall time that is accounted for, from 0 to 1.

        That is the larger one of `covered_ns` and the sum of the stages, over the wall time.
        Stages have no position in time, so what only one of the two covers can't be separated from
        what both cover. Taking the larger one never counts a moment twice: the true share is this
        or more. A request that took no time is accounted for.
        """
        wall_ns = self.request.end_ns - self.request.start_ns
        if wall_ns <= 0:
            return 1.0
        staged_ns = sum(stage.duration_ms for stage in self.stages()) * 1e6
        return min(1.0, max(self.covered_ns(), staged_ns) / wall_ns)

    def covered_ns(self) -> int:
        """Return how long at least one span below the request's, and of its process, was open."""
        request, total = self.request, 0
        place, reached = (request.service, request.process), request.start_ns
        own = (at for at in self.descendants(request) if (at.service, at.process) == place)
        for span in sorted(own, key=lambda span: span.start_ns):
            begin, end = max(span.start_ns, reached), min(span.end_ns, request.end_ns)
            if end > begin:
                total += end - begin
                reached = end
        return total


def trace_of(spans: Iterable[Span], request_id: str) -> Trace | None:
    """Return the trace of a request; of its last attempt where there were several."""
    return _last(spans, request_id)


def last_trace(spans: Iterable[Span]) -> Trace | None:
    """Return the trace of the request that ended last."""
    return _last(spans, None)


def _last(spans: Iterable[Span], request_id: str | None) -> Trace | None:
    spans = tuple(spans)
    requests = [span for span in spans if span.is_request]
    if request_id is not None:
        requests = [span for span in requests if span.attributes.get(REQUEST_ID) == request_id]
    if not requests:
        return None
    request = max(requests, key=lambda span: span.end_ns)
    known = {span.span_id: span for span in spans if span.trace_id == request.trace_id}
    same = sorted(known.values(), key=lambda span: (span.start_ns, -span.end_ns))
    whole = Trace(request, tuple(same))
    # A caller may send several requests within one trace of its own.
    others = [span for span in same if span.is_request and span is not request]
    foreign = {span.span_id for other in others for span in (other, *whole.descendants(other))}
    if request.span_id in foreign:  # a router called through another one
        return whole
    return Trace(request, tuple(span for span in same if span.span_id not in foreign))


def read_spans(directory: Path) -> list[Span]:
    """Return every span in the directory's *.jsonl files, in order of writing within each.

    A last line that is only half written is left out. Raises `InvalidRequest` for a directory or
    file that can't be read, and for a line that is no line of traces.
    """
    if not directory.is_dir():
        raise InvalidRequest(f"there is no directory {directory}")
    return [span for file in sorted(directory.glob("*.jsonl")) for span in _spans_of(file)]


def _spans_of(file: Path) -> Iterator[Span]:
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:  # renamed since it was listed
        return
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        try:
            yield from spans_in(json.loads(line.strip() or b"{}"))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                return  # it is being written
            what = f"{type(error).__name__}: {error}"
            raise InvalidRequest(
                f"line {number} of {file} holds no traces in OTLP/JSON ({what})"
            ) from None


def spans_in(data: Any) -> Iterator[Span]:
    """Return the spans of a TracesData message in OTLP/JSON. Raises for anything else."""
    for resource in data.get("resourceSpans", ()):
        about = _attributes(resource.get("resource", {}))
        service = str(about.get("service.name", "unknown"))
        process = str(about.get("service.instance.id", ""))
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield _span(span, service, process)


def _span(values: Mapping[str, Any], service: str, process: str) -> Span:
    status = values.get("status", {})
    return Span(
        trace_id=_id(values["traceId"], 16),
        span_id=_id(values["spanId"], 8),
        parent_id=_id(values["parentSpanId"], 8) if values.get("parentSpanId") else None,
        name=str(values.get("name", "")),
        kind=_KINDS[values.get("kind", 0)],
        service=service,
        process=process,
        start_ns=int(values["startTimeUnixNano"]),
        end_ns=int(values["endTimeUnixNano"]),
        attributes=_attributes(values),
        links=tuple(
            Link(_id(link["traceId"], 16), _id(link["spanId"], 8), _attributes(link))
            for link in values.get("links", ())
        ),
        status=_STATUSES[status.get("code", 0)],
        error=status.get("message") or None,
    )


def _id(text: str, num_bytes: int) -> str:
    """Return an id in lower case. Raises `ValueError` for anything else."""
    if len(bytes.fromhex(text)) != num_bytes:
        raise ValueError(f"an id is {text!r}, but must be {num_bytes} bytes in hex")
    return text.lower()


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    return {item["key"]: _value(item.get("value", {})) for item in values.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    """Return the value; None for one of no kind, or of a kind that is not known here."""
    for kind, held in value.items():
        if kind in _READERS:
            return _READERS[kind](held)
    return None


_READERS: dict[str, Callable[[Any], Any]] = {
    "stringValue": str,
    "boolValue": bool,
    "intValue": int,
    "doubleValue": float,
    "bytesValue": base64.b64decode,
    "arrayValue": lambda held: tuple(_value(item) for item in held.get("values", ())),
    "kvlistValue": lambda held: _attributes({"attributes": held.get("values", ())}),
}
