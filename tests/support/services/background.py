"""Event loops on threads of their own, and what serves on them, for tests that block."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import TypeVar

from slipstream.rpc.server import Register, Server, ServerOptions

GENERATION = "slipstream.rpc.v1.GenerationService"
T = TypeVar("T")


async def until(holds: Callable[[], object]) -> None:
    """Return once that holds, within some seconds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


class LoopThread:
    """An event loop that runs elsewhere."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """The result of a coroutine that is made and awaited there."""

        async def made() -> T:
            return await make()

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result(timeout=60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def on_thread(make: Callable[[LoopThread], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Enter something on a loop of its own, and leave it there in the end."""
    thread, stack = LoopThread(), AsyncExitStack()
    try:
        yield thread.run(lambda: stack.enter_async_context(make(thread)))
    finally:
        thread.run(stack.aclose)
        thread.close()


@asynccontextmanager
async def serving(
    services: dict[str, Register], options: ServerOptions | None = None
) -> AsyncIterator[str]:
    """The address of a server with these services."""
    server = Server(options or ServerOptions(), services)
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextmanager
def served(register: Register, options: ServerOptions | None = None) -> Iterator[str]:
    """The address of a server with this GenerationService."""
    with on_thread(lambda _: serving({GENERATION: register}, options)) as address:
        yield address
