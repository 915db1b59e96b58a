"""The span of one request at the router, and where its time goes: stages, some with a child span.

Knows neither the wire nor what a request is made of. Children are made when they are over, from
the times that were taken anyway, so that a request that is not traced pays for a clock only.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.context import Context, attach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.telemetry.carrier import Carrier, Timeline, parent_of
from slipstream.telemetry.metric import Attributes, Telemetry
from slipstream.telemetry.spans import record_error

_STAGE = "slipstream.stage.{}_ms"


class RequestSpan:
    """One request's span, which need not be sampled. `end` it."""

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        carrier: Carrier | None,
        attributes: Attributes,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin the SERVER span of a request that has arrived, below the carrier's, if any."""
        self._tracer, self.clock, self._timeline = telemetry.tracer, clock, Timeline(clock)
        self.span = self._tracer.start_span(
            name,
            parent_of(carrier) or Context(),
            SpanKind.SERVER,
            attributes=attributes,
            start_time=self._timeline.ns(clock()),
        )
        self.is_traced = self.span.is_recording()
        self._spent: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def become_current(self) -> None:
        """Be the current span of this task and of those it starts. It ends with the task."""
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
                child = self.begin(span, start_s, kind=SpanKind.INTERNAL)
                self.finish(child, end_s, {}, error)

    def begins(self, stage: str, at_s: float | None = None) -> None:
        """Begin a stage now, or at an earlier time; it `ends` elsewhere."""
        self._begun[stage] = self.clock() if at_s is None else at_s

    def ends(self, stage: str, at_s: float | None = None) -> None:
        """End a stage now, or at an earlier time, if it has begun."""
        start_s = self._begun.pop(stage, None)
        if start_s is not None:
            self.spend(stage, (self.clock() if at_s is None else at_s) - start_s)

    def begin(
        self, name: str, start_s: float, parent: Span | None = None, *, kind: SpanKind
    ) -> Span:
        """Begin a child, of the request's span if of no `parent`; `finish` it."""
        if not self.is_traced:
            return INVALID_SPAN
        context = in_context(self.span if parent is None else parent, Context())
        return self._tracer.start_span(name, context, kind, start_time=self._timeline.ns(start_s))

    def finish(
        self, span: Span, end_s: float, attributes: Attributes, error: BaseException | None
    ) -> None:
        """End a child, or the request's own span."""
        span.set_attributes(attributes)
        if error is not None:
            record_error(span, error)
        span.end(self._timeline.ns(end_s))

    def set_attributes(self, attributes: Attributes) -> None:
        """Set attributes, where the request is traced."""
        self.span.set_attributes(attributes)

    def end(self, error: BaseException | None = None) -> None:
        """End the request and all that has begun."""
        for stage in tuple(self._begun):
            self.ends(stage)
        spent = {_STAGE.format(name): 1000 * spent for name, spent in self._spent.items()}
        self.finish(self.span, self.clock(), spent, error)
