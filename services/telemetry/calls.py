"""Spans of calls that go out: what a caller sees of somebody else's work.

Knows neither messages nor how anybody is dialled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace import set_span_in_context as in_context

from slipstream.core.errors import SlipstreamError
from slipstream.telemetry.carrier import Carrier, carried
from slipstream.telemetry.failures import GIVEN_UP, failed_as
from slipstream.telemetry.metric import Attributes

STATUS_CODE = "rpc.response.status_code"


@dataclass(frozen=True, slots=True)
class Call:
    """The span of one call, on its way."""

    span: Span

    @property
    def carrier(self) -> Carrier | None:
        """What to tell whoever is called, so that its spans are children; None if not sampled."""
        return carried(self.span)

    def say(self, attributes: Attributes) -> None:
        """Set attributes."""
        self.span.set_attributes(attributes)


@contextmanager
def calling(
    tracer: Tracer,
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: Span | None = None,
    status_of: Callable[[BaseException], str] | None = None,
) -> Iterator[Call]:
    """A CLIENT span around a call, a child of `parent`, by default of the span that is current.

    It does not become the current one itself. An error that passes is its status, but for a call
    that is given up. `status_of` names the status of the wire that an error stands for: with it
    the span says that too, OK where none passes.
    """
    context = None if parent is None else in_context(parent)
    span = tracer.start_span(name, context, SpanKind.CLIENT, attributes=attributes)
    try:
        yield Call(span)
    except BaseException as error:
        _failed(span, error, status_of(error) if status_of else None)
        raise
    else:
        if status_of is not None:
            span.set_attribute(STATUS_CODE, "OK")
    finally:
        span.end()


def rpc_attributes(method: str, address: str) -> Attributes:
    """Of a call of a gRPC method, such as slipstream.rpc.v1.TargetService/StreamKv."""
    return {"rpc.system.name": "grpc", "rpc.method": method, **server_attributes(address)}


def server_attributes(address: str) -> Attributes:
    """Of whoever is called at HOST:PORT, or by a gRPC name such as dns:///NAME:PORT."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if address.startswith("unix:") or not (host and port.isdigit()):
        return {"server.address": address}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


def _failed(span: Span, error: BaseException, status: str | None) -> None:
    """A call that a caller gives up has not failed; one that has goes by the wire's status, where
    the error is not our own."""
    if status is not None:
        span.set_attribute(STATUS_CODE, status)
    if not isinstance(error, GIVEN_UP):
        is_ours = isinstance(error, SlipstreamError)
        failed_as(span, type(error).__name__ if is_ours or status is None else status, error)
