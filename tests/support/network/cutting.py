"""A way to a router that breaks: connections end after so many bytes of what comes back."""

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress

LOOPBACK = "127.0.0.1"


class Cutter:
    """Passes connections on to ports in turn. Each ends after as many bytes as are drawn for it.
    Once no more numbers are left, connections last."""

    def __init__(self, *addresses: str, after: Iterable[int] = ()) -> None:
        self._ports = [int(address.rpartition(":")[2]) for address in addresses]
        self._numbers = iter(after)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_connections = 0
        self.num_cuts = 0

    def cuts(self, after: Iterable[int]) -> None:
        """Numbers for the connections that come; one that is there already ends now."""
        self._numbers = iter(after)
        for task in self._tasks:
            task.cancel()

    @property
    def address(self) -> str:
        port: int = self._server.sockets[0].getsockname()[1]
        return f"{LOOPBACK}:{port}"

    async def __aenter__(self) -> "Cutter":
        self._server = await asyncio.start_server(self._passed, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(task := asyncio.current_task())
        task.add_done_callback(self._tasks.discard)
        port = self._ports[self.num_connections % len(self._ports)]
        self.num_connections += 1
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, port)
            ways = [
                asyncio.ensure_future(_pass_on(reader, far_writer, None)),
                asyncio.ensure_future(_pass_on(far_reader, writer, next(self._numbers, None))),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.num_cuts += ways[1].done()
                for way in ways:
                    way.cancel()
                far_writer.transport.abort()
        writer.transport.abort()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, num_bytes: int | None
) -> None:
    """All that comes, or so many bytes of it."""
    left = sys.maxsize if num_bytes is None else num_bytes
    with suppress(OSError):
        while left > 0 and (data := await reader.read(1 << 16)):
            writer.write(data[:left])
            await writer.drain()
            left -= len(data)
