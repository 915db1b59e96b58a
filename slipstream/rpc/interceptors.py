"""Interceptors of a server's calls: broken messages and errors become statuses, by one table."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from slipstream.core import errors
from slipstream.rpc.security import Callers
from slipstream.rpc.status import pushback_of, status_of
from slipstream.rpc.wire import check_num_fields

_LOG = logging.getLogger("slipstream.rpc")
_TOO_LONG = "the call has run for {}, the longest time that one may"
_NOT_TAKEN = "the caller has not taken a message within {}; the same request again goes on"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of calls: their time in seconds, and what their messages may hold."""

    send_s: float = 60.0
    """Longest time for a caller to take one message of a stream."""
    call_s: float | None = None
    """Longest time of a whole call; None for no limit."""
    message_fields: int | None = None
    """Most fields of a message that a caller sends, those within fields included; None for no
    limit."""


class Calls(grpc.aio.ServerInterceptor):
    """The calls in flight, who may make one, and how long it may take.

    Health and reflection are not among them: they answer everybody, and who watches health never
    ends. A call ends with the status of the error that its handler raised. What is no
    `SlipstreamError` is a bug: it is logged, and the caller learns no more than that.
    """

    def __init__(self, callers: Callers, limits: CallLimits) -> None:
        self._callers = callers
        self.limits = limits
        self._num_running = 0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def one(self, method: str, context: Any) -> AsyncIterator[None]:
        """Count a call for as long as it runs.

        Raises `Unavailable` once there may be no more, `PermissionDenied`, and `DeadlineExceeded`
        within a call that has run for the longest time.
        """
        if method.startswith("/grpc."):
            yield
            return
        self._callers.check(method, context)
        if self._is_closed:
            raise errors.Unavailable("the service is about to stop")
        self._num_running += 1
        self._idle.clear()
        try:
            async with _limited(self.limits.call_s, errors.DeadlineExceeded, _TOO_LONG):
                yield
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        requests = "stream" if handler.request_streaming else "unary"
        answers = "stream" if handler.response_streaming else "unary"
        inner = getattr(handler, f"{requests}_{answers}")
        check = _all_checked if handler.request_streaming else _checked
        if handler.response_streaming:
            inner = _taken_in_time(inner, self.limits.send_s)
        return getattr(grpc, f"{requests}_{answers}_rpc_method_handler")(
            _guarded(inner, method, self, check),
            request_deserializer=_lenient(handler.request_deserializer, self.limits),
            response_serializer=handler.response_serializer,
        )

    def close(self) -> None:
        """Refuse those that come from now on."""
        self._is_closed = True

    def give_up(self) -> None:
        """Wait no longer for those that run."""
        self._idle.set()

    async def none(self, limit_s: float) -> None:
        """Wait until there are none or waiting was given up, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    async def ended(self, limit_s: float) -> None:
        """Wait until those that were cancelled have cleaned up, at most so long."""
        if self._num_running:
            self._idle.clear()
        await self.none(limit_s)


@asynccontextmanager
async def _limited(
    limit_s: float | None, kind: type[errors.SlipstreamError], text: str
) -> AsyncIterator[None]:
    """Raise an error with the `text` where the work takes longer; it has {} for the limit."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise kind(text.replace("{}", f"{limit_s:g} s")) from None


def _lenient(parse: Any, limits: CallLimits) -> Callable[[bytes], Any] | None:
    if parse is None:
        return None
    descriptor: Descriptor = parse.__self__.DESCRIPTOR  # every parser is a message's `FromString`

    def parsed(data: bytes) -> Any:
        """Return the error of a broken message: gRPC's own answer would be INTERNAL."""
        try:
            if limits.message_fields is not None:
                check_num_fields(data, descriptor, limits.message_fields)
            return parse(data)
        except DecodeError:
            return errors.InvalidRequest(f"a message of {len(data)} bytes can't be parsed")
        except errors.InvalidRequest as error:
            return error

    return parsed


def _checked(message: Any) -> Any:
    if isinstance(message, errors.InvalidRequest):
        raise message
    return message


async def _all_checked(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _checked(message)


class _TimedContext:
    """Context of a stream, whose caller must take each message in time."""

    def __init__(self, context: Any, send_s: float) -> None:
        self._context = context
        self._send_s = send_s
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """Send a message. Raises `Unavailable` where the caller does not take it in time, and
        `Cancelled` where it has left: a write may find that before the call is cancelled."""
        try:
            async with _limited(self._send_s, errors.Unavailable, _NOT_TAKEN):
                if self._is_first:  # by itself: no status could follow a message that is stuck
                    await self._context.send_initial_metadata(())
                    self._is_first = False
                await self._context.write(message)
        except grpc.aio.InternalError:
            raise errors.Cancelled("the caller has left") from None


def _taken_in_time(handler: Any, send_s: float) -> Any:
    """Return the handler of a stream: a generator, or a coroutine that writes to its context."""

    async def answer(request: Any, context: Any) -> None:
        timed = _TimedContext(context, send_s)
        if not inspect.isasyncgenfunction(handler):
            await handler(request, timed)
            return
        async with aclosing(handler(request, timed)) as messages:
            async for message in messages:
                await timed.write(message)

    return answer


def _guarded(handler: Any, method: str, calls: Calls, check: Callable[[Any], Any]) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        try:
            async with calls.one(method, context):
                return await handler(check(request), context)
        except Exception as error:
            await _abort(context, error, method)

    return answer


async def _abort(context: Any, error: Exception, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, errors.SlipstreamError):
        _LOG.error("%s failed", method, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, f"{method} failed; the log says why")
    assert isinstance(error, errors.SlipstreamError)
    status = status_of(error)
    trailing = [*(context.trailing_metadata() or ()), *(status.trailing_metadata or ())]
    with suppress(grpc.aio.InternalError):  # the caller has gone meanwhile
        await context.abort(status.code, status.details, (*trailing, *pushback_of(error)))
