"""Work for a caller who may leave: then it ends, and so does what it asked of a router."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream.core.ended import ended
from slipstream.gateway.errors import CallerGone

T = TypeVar("T")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. Raises `CallerGone` when the caller leaves first, which ends it.

    The caller's request must have been read.
    """
    task, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CallerGone
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()
        await ended(task, leaving)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response that comes in parts, and is closed whoever ends it."""

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncGenerator[bytes, None], headers: dict[str, str]) -> None:
        # A body of no length: it would be announced otherwise.
        self._parts = parts
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        async with aclosing(self._parts):
            try:
                await unless_gone(receive, self._send(send))
            except CallerGone:
                return

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
