"""A TCP proxy that is a bad network: silent, cut, or losing so that packets are sent again.

Knows bytes and connections; not what travels.
"""

import asyncio
import random
from contextlib import suppress
from enum import Enum

_PIECE = 1 << 16
RETRANSMIT_S = 0.2
"""What a lost packet costs TCP at least."""
SLOW_S = 0.3
"""Delay of each piece on a slow way."""


class Weather(Enum):
    """What becomes of bytes."""

    FAIR = "fair"
    SILENT = "silent"
    """Nothing arrives and nobody is told: a partition."""
    CUT = "cut"
    """Connections are reset, new ones are refused at once."""
    LOSSY = "lossy"
    """Some pieces arrive late, and all behind them."""
    SLOW = "slow"
    """Each piece arrives late."""


class Proxy:
    """Everything between those who dial `address` and `to`. For one event loop."""

    def __init__(self, to: str, *, loss: float = 0.02, seed: int = 0) -> None:
        self._host, _, port = to.rpartition(":")
        self._port = int(port)
        self._loss = loss
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._pairs: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._heard = asyncio.Event()
        self._heard.set()
        self._weather = Weather.FAIR
        self.address = ""
        self.num_lost = 0

    async def start(self) -> str:
        """Listen; the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    def become(self, weather: Weather) -> None:
        """Change what happens to bytes from now on, on connections that stand, too."""
        self._weather = weather
        if weather is Weather.SILENT:
            self._heard.clear()
        else:
            self._heard.set()
        if weather is Weather.CUT:
            for writer in list(self._writers):
                writer.transport.abort()

    async def stop(self) -> None:
        """End it and all its connections."""
        self.become(Weather.CUT)
        if self._server is not None:
            self._server.close()
        for pair in list(self._pairs):
            pair.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.current_task()
        assert pair is not None
        self._pairs.add(pair)
        self._writers.add(writer)
        try:
            await self._join(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is stopped
        finally:
            self._pairs.discard(pair)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather is Weather.CUT:
            return
        await self._heard.wait()
        try:
            back, forth = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return
        self._writers.add(forth)
        ways = [
            asyncio.ensure_future(self._carry(*way)) for way in ((reader, forth), (back, writer))
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(forth)
            forth.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE):
                await self._heard.wait()
                if self._weather is Weather.LOSSY and self._random.random() < self._loss:
                    self.num_lost += 1
                    await asyncio.sleep(RETRANSMIT_S)
                if self._weather is Weather.SLOW:
                    await asyncio.sleep(SLOW_S)
                writer.write(piece)
                await writer.drain()
