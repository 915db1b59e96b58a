"""The span of one request at the router, and where its time goes: stages, some with a child span.

Knows neither the wire nor what a request is made of. Children are made when they are over, from
the times that were taken anyway, so that a request that is not traced pays for a clock only.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry.context import Context, attach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Tracer
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.telemetry.carrier import Timeline
from slipstream.telemetry.metric import Attributes
from slipstream.telemetry.replies import failed

if TYPE_CHECKING:
    from collections.abc import Mapping

_STAGE = "slipstream.stage.{}_ms"
_CURRENT: ContextVar["RequestSpan | None"] = ContextVar("slipstream_request", default=None)


class RequestSpan:
    """One request's span, which need not be sampled. `end` it."""

    def __init__(
        self,
        tracer: Tracer,
        span: Span = INVALID_SPAN,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tracer = tracer
        self.span = span
        self.clock = clock
        self.is_traced = span.is_recording()
        self._timeline = Timeline(clock)
        self._spent: dict[str, float] = {}

    @property
    def context(self) -> Context:
        """That of its children."""
        return in_context(self.span, Context())

    @property
    def spent(self) -> "Mapping[str, float]":
        """Seconds by stage, so far."""
        return self._spent

    def become_current(self) -> None:
        """Be what this task, and those it starts, are about. For a task that ends with it."""
        _CURRENT.set(self)
        if self.is_traced:
            attach(in_context(self.span))

    def spend(self, stage: str, seconds: float) -> None:
        """Count time of a stage."""
        self._spent[stage] = self._spent.get(stage, 0.0) + seconds

    @contextmanager
    def stage(self, stage: str, span: str | None = None) -> Iterator[None]:
        """Time what is done here; with a name for it, it has a child span too."""
        start_s = self.clock()
        error: BaseException | None = None
        try:
            yield
        except BaseException as passing:
            error = passing
            raise
        finally:
            end_s = self.clock()
            self.spend(stage, end_s - start_s)
            if span is not None:
                self.child(span, (start_s, end_s), error=error)

    def child(
        self,
        name: str,
        times: tuple[float, float],
        attributes: Attributes | None = None,
        *,
        error: BaseException | None = None,
        parent: Span | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """A span of what is over, with start and end; a child of `parent`, by default of the
        request's."""
        if not self.is_traced:
            return INVALID_SPAN
        context = self.context if parent is None else in_context(parent, Context())
        at_ns = self._timeline.ns
        span = self._tracer.start_span(
            name, context, kind, attributes=attributes, start_time=at_ns(times[0])
        )
        if error is not None:
            failed(span, error)
        span.end(at_ns(times[1]))
        return span

    def begin(self, name: str, parent: Span | None = None, *, kind: SpanKind) -> Span:
        """A span of what begins now; end it."""
        context = self.context if parent is None else in_context(parent, Context())
        return self._tracer.start_span(name, context, kind)

    def say(self, attributes: Attributes) -> None:
        """Set attributes."""
        if self.is_traced:
            self.span.set_attributes(attributes)

    def end(self, error: BaseException | None = None) -> None:
        """The request is over."""
        if not self.is_traced:
            return
        self.say({_STAGE.format(name): 1000 * spent for name, spent in self._spent.items()})
        if error is not None:
            failed(self.span, error)
        self.span.end()


def current_request() -> RequestSpan | None:
    """The request that this task is about."""
    return _CURRENT.get()
