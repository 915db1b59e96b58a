"""Spans and traces as plain values, without files and without an SDK."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

REQUEST_ID = "gen_ai.response.id"
_REQUESTS = "slipstream.rpc.v1.GenerationService/Generate"


class SpanKind(StrEnum):
    """The side of a call that a span is of, if any."""

    UNSPECIFIED = "unspecified"
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Status(StrEnum):
    """The way a span ended."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


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
        """Return its duration."""
        return (self.end_ns - self.start_ns) / 1e6

    @property
    def is_request(self) -> bool:
        """Return whether it is a router's span of a whole request."""
        return self.kind is SpanKind.SERVER and self.name.startswith(_REQUESTS)


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

    def descendants(self, of: Span) -> list[Span]:
        """Return children, their children and so on, in no particular order."""
        children, waiting = self.children(), [of]
        found: dict[str, Span] = {}
        while waiting:
            below = children.get(waiting.pop().span_id, [])
            waiting += (span for span in below if span.span_id not in found)
            found |= {span.span_id: span for span in below}
        return list(found.values())


def trace_of(spans: Iterable[Span], request_id: str) -> Trace | None:
    """Return the trace of a request; of its last attempt where there were several."""
    spans = tuple(spans)
    return _last(spans, [span for span in _requests(spans) if _id_of(span) == request_id])


def last_trace(spans: Iterable[Span]) -> Trace | None:
    """Return the trace of the request that ended last."""
    spans = tuple(spans)
    return _last(spans, _requests(spans))


def _requests(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if span.is_request]


def _id_of(request: Span) -> Any:
    return request.attributes.get(REQUEST_ID)


def _last(spans: Sequence[Span], requests: Sequence[Span]) -> Trace | None:
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
