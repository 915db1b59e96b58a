"""Both engines in this process, for asyncio: its requests share the steps of both.

The engines compute on one thread of their own, for they use the same cores; all else happens on the
caller's event loop.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from slipstream.client.backend import ChunkSource
from slipstream.client.call import ClientCall, late
from slipstream.client.embedded import Embedded
from slipstream.client.embedded_session import Answer, EnginePorts
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import Cancelled
from slipstream.core.ports import Draft
from slipstream.core.request.results import Chunk
from slipstream.drafting.batcher import BatchedDraft
from slipstream.drafting.build import Drafter
from slipstream.drafting.engine import LocalDraft
from slipstream.engine.thread import EngineThread
from slipstream.verifying.batcher import BatchedTarget


class AsyncEmbedded(Embedded):
    """See `Backend`. Belongs to one event loop."""

    def __init__(self, engine: Engine, drafter: Drafter, thread: EngineThread) -> None:
        """Both were made on `thread`, and belong to it."""
        self._thread = thread
        self._target = BatchedTarget(engine.target, thread, engine.budget)
        draft = _batched(drafter.draft, thread)
        super().__init__(engine, drafter, EnginePorts(draft, self._target, self._target.park))
        self._running: set[_BatchedStream] = set()

    @classmethod
    def load(
        cls, target: str, draft: str, options: EngineOptions, *, profile: Path | None = None
    ) -> Self:
        """Load both models by name; blocks until they are. See `Embedded.load`."""
        thread = EngineThread("slipstream-engine")

        def load() -> tuple[Engine, Drafter]:
            engine = Engine.load(target, options)
            return engine, engine.drafter(draft, profile=profile)

        try:
            engine, drafter = thread.call(load)
        except BaseException:
            thread.close()
            raise
        return cls(engine, drafter, thread)

    def stream(self, call: ClientCall) -> ChunkSource:
        """See `Backend.stream`."""
        return _BatchedStream(self, call, self._running)

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`."""
        if not self._is_closed:
            await _end([stream for stream in self._running if stream.session_id == session_id])
            await super().end_session(session_id)

    async def pause(self, seconds: float) -> None:
        """See `Backend.pause`."""
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """See `Backend.aclose`. Waits for the steps that run."""
        if self._is_closed:
            return
        await super().aclose()
        error = Cancelled("the client was closed while the request ran")
        await _end(list(self._running), error)
        await self._target.close()
        self._thread.close()


class _BatchedStream:
    """See `ChunkSource`: one request, which ends in a task of its own whatever its reader does."""

    def __init__(
        self, engines: AsyncEmbedded, call: ClientCall, running: "set[_BatchedStream]"
    ) -> None:
        """The stream is in `running` from its start to its end."""
        self.session_id = call.generation.session and call.generation.session.session_id
        self._engines = engines
        self._call = call
        self._running = running
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: float | None = None
        self._answer: Answer | None = None
        self._reading: asyncio.Task[Chunk | None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ended_by: Exception | None = None

    async def start(self) -> Chunk | None:
        """See `ChunkSource.start`: all that can be refused is, and nothing is computed."""
        self._answer = self._engines.turn(self._call)
        self._loop = asyncio.get_running_loop()
        if self._call.timeout_s is not None:
            self._deadline = self._loop.time() + self._call.timeout_s
        self._running.add(self)
        return None

    async def read(self) -> Chunk | None:
        """See `ChunkSource.read`. None also after the end."""
        if self._answer is None or self._is_ending():
            return self._after_end()
        self._reading = asyncio.create_task(self._answer.read())
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._reading
        except TimeoutError:
            raise late(self._call.timeout_s or 0.0) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_ending() or (task is not None and task.cancelling()):
                raise
            return self._after_end()

    async def aclose(self) -> None:
        """See `ChunkSource.aclose`."""
        if self._answer is not None:
            # The caller may be cancelled; the engines are freed in any case.
            await asyncio.shield(self.end())

    def cancel(self) -> None:
        """See `ChunkSource.cancel`."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and all of it is over
                self._loop.call_soon_threadsafe(self.end)

    def end(self, error: Exception | None = None) -> asyncio.Task[None]:
        """End the request. Its reader gets the error, or nothing more."""
        if self._ending is None:
            self._ended_by = error
            self._ending = asyncio.create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait({self._reading})
        try:
            if self._answer is not None:
                await self._answer.end()
        finally:
            self._running.discard(self)

    def _is_ending(self) -> bool:
        return self._ending is not None

    def _after_end(self) -> Chunk | None:
        if self._ended_by is not None:
            raise self._ended_by
        return None


async def _end(streams: Sequence[_BatchedStream], error: Exception | None = None) -> None:
    if endings := [stream.end(error) for stream in streams]:
        await asyncio.wait(endings)


def _batched(draft: Draft, thread: EngineThread) -> Draft:
    """A model shares its steps; what only looks at the text costs less than a thread would."""
    return BatchedDraft(draft, thread) if isinstance(draft, LocalDraft) else draft
