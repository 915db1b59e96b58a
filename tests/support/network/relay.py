"""TCP relays between services on loopback: they keep what passes, or cut it."""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Self

LOOPBACK = "127.0.0.1"
_PIECE = 1 << 16


class Relay:
    """A TCP relay to a port of this machine, for one event loop.

    `streams` has the bytes of each connection that were sent there, and those that came back. A
    piece that comes in passes after `delay_s`.
    """

    def __init__(self, to: str, *, keeps: bool = False, delay_s: float = 0.0) -> None:
        self._port = int(to.rpartition(":")[2])
        self._keeps, self._delay_s = keeps, delay_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._limits: Iterator[int] = iter(())
        self.streams: list[bytearray] = []
        self.num_connections = self.num_cuts = 0

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes that were kept."""
        return sum(map(len, self.streams))

    def cut(self) -> None:
        """End all connections; there may be new ones."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cuts(self, after: Iterable[int]) -> None:
        """End all connections, and each later one after so many bytes of its answers."""
        self._limits = iter(after)
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(near)
        try:
            await self._join(reader, near)
        except asyncio.CancelledError:
            pass  # the relay is stopped
        finally:
            self._tasks.discard(task)
            self._writers.discard(near)
            near.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        limit = next(self._limits, sys.maxsize)
        try:
            back, far = await asyncio.open_connection(LOOPBACK, self._port)
        except OSError:
            return
        self._writers.add(far)
        there = asyncio.ensure_future(self._carry(reader, far, sys.maxsize))
        answers = asyncio.ensure_future(self._carry(back, near, limit))
        try:
            await asyncio.wait((there, answers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.num_cuts += answers.done()
            self._writers.discard(far)
            far.transport.abort()
            for way in (there, answers):
                way.cancel()
            await asyncio.wait((there, answers))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int
    ) -> None:
        """Pass bytes on until one side ends, or so many have passed."""
        kept = bytearray()
        if self._keeps:
            self.streams.append(kept)
        with suppress(OSError):
            while limit > 0 and (piece := await reader.read(_PIECE)):
                if self._keeps:
                    kept += piece
                await asyncio.sleep(self._delay_s)
                writer.write(piece[:limit])
                await writer.drain()
                limit -= len(piece)
