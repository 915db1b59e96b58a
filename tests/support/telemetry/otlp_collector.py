"""A collector that remembers: spans and metrics of processes, sent as to any backend."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from slipstream.telemetry.traces import Link, Span, SpanKind, Status
from support.services.background import LoopThread
from support.telemetry.otlp_receiver import receiver

LIMIT_S = 30.0
_KINDS = tuple(SpanKind)
_STATUSES = tuple(Status)

T = TypeVar("T")


class Collector:
    """What has come so far. For any thread."""

    def __init__(self) -> None:
        self.url = ""
        self._heard = threading.Condition()
        self._spans: list[Span] = []
        self._metrics: dict[str, dict[str, Any]] = defaultdict(dict)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans in order of arrival."""
        with self._heard:
            return tuple(self._spans)

    def traces(self) -> dict[str, list[Span]]:
        """Spans by the id of their trace."""
        return traces_of(self.spans)

    def metrics(self, service: str) -> dict[str, Any]:
        """The latest of each metric of a service, by name."""
        with self._heard:
            return dict(self._metrics[service])

    def until(self, condition: Callable[[], T]) -> T:
        """What a condition on this comes to, once that is something; or at the end of patience."""
        with self._heard:
            self._heard.wait_for(condition, LIMIT_S)
        return condition()

    def take_spans(self, request: Any) -> None:
        """One message of an exporter."""
        with self._heard:
            for resource in request.resource_spans:
                about = _attributes(resource.resource)
                for scope in resource.scope_spans:
                    self._spans += [_span(span, about) for span in scope.spans]
            self._heard.notify_all()

    def take_metrics(self, request: Any) -> None:
        """One message of an exporter."""
        with self._heard:
            for resource in request.resource_metrics:
                held = self._metrics[_attributes(resource.resource)["service.name"]]
                for scope in resource.scope_metrics:
                    held |= {metric.name: metric for metric in scope.metrics}
            self._heard.notify_all()


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens meanwhile."""
    found, thread = Collector(), LoopThread()
    serving = receiver(found)
    found.url = thread.run(serving.__aenter__)
    try:
        yield found
    finally:
        thread.run(lambda: serving.__aexit__(None, None, None))
        thread.close()


def traces_of(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Spans by the id of their trace."""
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.trace_id].append(span)
    return dict(found)


def _span(span: Any, about: dict[str, Any]) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        name=span.name,
        kind=_KINDS[span.kind],
        service=about["service.name"],
        process=about.get("service.instance.id", ""),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span),
        links=tuple(Link(at.trace_id.hex(), at.span_id.hex()) for at in span.links),
        status=_STATUSES[span.status.code],
        error=span.status.message or None,
    )


def _attributes(of: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    held = getattr(value, kind)
    return tuple(_value(item) for item in held.values) if kind == "array_value" else held
