"""How a span ends in an error, and what of the error it says. Knows no calls and no services."""

import asyncio

from opentelemetry.trace import Span, Status, StatusCode

from slipstream.core.errors import InvalidRequest, SlipstreamError

GIVEN_UP = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
"""What ends work that nobody has a use for any more: it has not failed."""
CANCELLED = "Cancelled"
"""The type of such an error."""


def failed(span: Span, error: BaseException) -> None:
    """Have work's span end in an error; one that nobody waits for any more has not failed."""
    if isinstance(error, GIVEN_UP):
        span.set_attribute("error.type", CANCELLED)
    else:
        failed_as(span, type(error).__name__, error)


def failed_as(span: Span, kind: str, error: BaseException) -> None:
    """Have a span end in an error that goes by this name.

    Only errors of ours are known to say nothing secret, and of these not what quotes a caller.
    """
    span.set_attribute("error.type", kind)
    is_told = isinstance(error, SlipstreamError) and not isinstance(error, InvalidRequest)
    span.set_status(Status(StatusCode.ERROR, str(error) if is_told else None))
