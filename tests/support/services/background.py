"""A gRPC server of this project on a thread of its own, for tests that block."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from slipstream.rpc.server import Register, Server, ServerOptions

GENERATION = "slipstream.rpc.v1.GenerationService"


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

    def run(self, make: Callable[[], Awaitable[object]]):
        """The result of a coroutine that is made and awaited there."""

        async def made():
            return await make()

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result(timeout=60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def served(register: Register, options: ServerOptions | None = None) -> Iterator[str]:
    """The address of a server with this GenerationService."""
    thread = LoopThread()
    server, port = thread.run(lambda: _started(register, options or ServerOptions()))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        thread.run(lambda: server.stop(0))
        thread.close()


async def _started(register: Register, options: ServerOptions) -> tuple[Server, int]:
    server = Server(options, {GENERATION: register})
    return server, await server.start()
