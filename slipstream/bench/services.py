"""The three services as processes beside the benchmark, and a wire between them that is slow."""

import asyncio
import os
import selectors
import threading
from collections.abc import Coroutine, Mapping
from contextlib import closing
from typing import Any, Self, TypeAlias, TypeVar

from slipstream.bench.harness import processor_s
from slipstream.core.errors import InvalidRequest
from slipstream.local.stack import Stack, StackPlan

T = TypeVar("T")
Pieces: TypeAlias = asyncio.Queue[tuple[float, bytes]]
"""Bytes under way, with the time when each is due; no bytes are the end."""
_PIECE = 1 << 16
_MOST_PIECES = 1024
"""Pieces under way in one direction; a sender that is ahead of a slow reader waits."""


class LocalServices:
    """Target, draft and router on this machine, while the context lasts.

    With `is_apart`, the wires between the draft and the others have a delay that can be set. With
    `is_pinned`, the target has the first core of this process for itself. What holds the services
    together runs in a thread, which must live as long as they do.
    """

    def __init__(self, plan: StackPlan, *, is_apart: bool = False, is_pinned: bool = False) -> None:
        # Timeouts of epoll are whole milliseconds, of select not; a delay is to be exact.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="services")
        self._lines = {role: DelayLine() for role in ("target", "draft") if is_apart}
        """Wires to the keys of the target, and to the draft."""
        self._is_pinned = is_pinned
        self._stack = Stack(plan, on_line=_drop)
        self.address = ""
        """The router's, once it serves."""

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.address = self._run(self._start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def set_delay(self, delay_s: float) -> None:
        """Set how long everything from and to the draft is under way from now on."""
        for line in self._lines.values():
            line.set_delay(delay_s)

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the services' processes."""
        return tuple(self._stack.pids.values())

    def cpu_s(self) -> float:
        """Return the processor seconds that the services have used so far."""
        return sum(map(processor_s, self.pids))

    async def _start(self) -> str:
        for line in self._lines.values():
            await line.start()
        advertised = {role: line.address for role, line in self._lines.items()}
        address = await self._stack.start(advertised, on_engines=self._lead)
        if self._is_pinned:
            for role, pid in self._stack.pids.items():
                pin(pid, is_target=role == "target")
        return address

    def _lead(self, engines: Mapping[str, str]) -> None:
        """Have the wires lead to the engines, before the router uses them."""
        for role, line in self._lines.items():
            line.lead_to(engines[role])

    async def _stop(self) -> None:
        try:
            await self._stack.stop(hurry=True)
        finally:
            for line in self._lines.values():
                await line.close()

    def _end(self) -> None:
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def pin(pid: int, *, is_target: bool) -> None:
    """Keep a process on the first core of this one if it is the target, else on the others.

    Raises `InvalidRequest` where there is one core only.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        raise InvalidRequest("a target of its own core needs 2 cores or more, but there is 1")
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), [first] if is_target else others)


def _drop(name: str, line: str) -> None:
    """Ignore the services' logs; what keeps one from starting is raised."""


class DelayLine:
    """TCP relay to one address that holds back all bytes for a while, in order.

    What is sent in a burst arrives in a burst. It belongs to one event loop; close it.
    """

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
            if self._upstream is not None:
                far, there = await asyncio.open_connection(*self._upstream)
                with closing(there):
                    await self._carry((near, there), (far, back))
        except* OSError:
            pass  # either side is gone, and the end of its connection shows it to the other
        finally:
            back.close()

    async def _carry(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        async with asyncio.TaskGroup() as group:
            for source, sink in ways:
                pieces: Pieces = asyncio.Queue(_MOST_PIECES)
                group.create_task(self._read(source, pieces))
                group.create_task(_write(pieces, sink))

    async def _read(self, source: asyncio.StreamReader, pieces: Pieces) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            piece = await source.read(_PIECE)
            await pieces.put((clock() + self._delay_s, piece))
            if not piece:
                return


async def _write(pieces: Pieces, sink: asyncio.StreamWriter) -> None:
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
