"""A wire that takes its time: a TCP relay that holds back all it carries for a while, in order.

What is sent in a burst arrives in a burst: bytes are delayed, not the relay. Knows no protocol.
"""

import asyncio
from collections.abc import Callable

from slipstream.core.errors import InvalidRequest

Clock = Callable[[], float]

_PIECE = 1 << 16
_MOST_PIECES = 1024
"""Pieces under way in one direction; a sender that is ahead of a slow reader waits."""


class DelayLine:
    """Listens, and leads every connection to one address. For one event loop; close it."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._upstream: tuple[str, int] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""
        """Address on which it listens, once it does."""
        self.set_delay(delay_s)

    def set_delay(self, delay_s: float) -> None:
        """Set how long either direction takes from now on."""
        if not 0 <= delay_s <= 10:
            raise InvalidRequest(f"the delay is {delay_s:g} s, but must be 0 to 10")
        self._delay_s = delay_s

    def lead_to(self, address: str) -> None:
        """Set where connections lead from now on: HOST:PORT."""
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))

    async def start(self) -> None:
        """Listen on a free port of this machine."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(near, back))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            await self._join(near, back)
        except OSError:
            pass  # either side is gone, and the other is told by the end of its connection
        finally:
            back.close()

    async def _join(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self._upstream is None:
            return
        far, there = await asyncio.open_connection(*self._upstream)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(near, there))
                group.create_task(self._carry(far, back))
        except* OSError:
            pass
        finally:
            there.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_PIECES)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(source, pieces))
            group.create_task(_write(pieces, sink))

    async def _read(
        self, source: asyncio.StreamReader, pieces: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            piece = await source.read(_PIECE)
            await pieces.put((clock() + self._delay_s, piece))
            if not piece:
                return


async def _write(pieces: "asyncio.Queue[tuple[float, bytes]]", sink: asyncio.StreamWriter) -> None:
    """Write every piece when it is due; the empty one is the end."""
    clock = asyncio.get_running_loop().time
    while True:
        due, piece = await pieces.get()
        if due > clock():
            await asyncio.sleep(due - clock())
        if not piece:
            if sink.can_write_eof():
                sink.write_eof()
            return
        sink.write(piece)
        await sink.drain()
