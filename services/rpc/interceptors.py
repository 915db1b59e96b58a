"""What every call to a server passes: errors become statuses, on one table."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from slipstream.core.errors import CapacityError, SlipstreamError
from slipstream.rpc.status import status_of

PUSHBACK_MS = "500"
_LOG = logging.getLogger("slipstream.rpc")


class ErrorsToStatuses(grpc.aio.ServerInterceptor):
    """Ends a call with the status of the error that its handler raised.

    What is no `SlipstreamError` is a bug: it is logged, and the caller learns no more than that.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        requests = "stream" if handler.request_streaming else "unary"
        answers = "stream" if handler.response_streaming else "unary"
        make = getattr(grpc, f"{requests}_{answers}_rpc_method_handler")
        inner = getattr(handler, f"{requests}_{answers}")
        # A stream is a generator, or a coroutine that writes to its context.
        guard = _streaming if inspect.isasyncgenfunction(inner) else _awaited
        behaviour = guard(inner, method)
        return make(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _awaited(handler: Any, method: str) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except Exception as error:
            await _abort(context, error, method)

    return answer


def _streaming(handler: Any, method: str) -> Any:
    async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
        answers = handler(request, context)
        try:
            async for message in answers:
                yield message
        except Exception as error:
            await _abort(context, error, method)
        finally:
            await answers.aclose()

    return answer


async def _abort(context: Any, error: Exception, method: str) -> None:
    if isinstance(error, (grpc.aio.AbortError, asyncio.CancelledError)):
        raise error
    if not isinstance(error, SlipstreamError):
        _LOG.error("%s failed", method, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, f"{method} failed; the log says why")
    if isinstance(error, CapacityError):
        context.set_trailing_metadata((("grpc-retry-pushback-ms", PUSHBACK_MS),))
    status = status_of(error)  # type: ignore[arg-type]
    trailing = (*(context.trailing_metadata() or ()), *(status.trailing_metadata or ()))
    await context.abort(status.code, status.details, trailing)
