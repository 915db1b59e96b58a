"""Both engines in this process, for asyncio: all of their work happens on one thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from slipstream.client.embedded import Embedded
from slipstream.client.engine import EngineOptions
from slipstream.client.stream import AsyncChunkStream, ChunkStream
from slipstream.client.surface import Call
from slipstream.core.errors import SessionClosed
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, Result, collected
from slipstream.core.server_info import ServerInfo

T = TypeVar("T")


class AsyncEmbedded:
    """See `client.backend.AsyncBackend`. Requests take turns on the thread, round by round."""

    def __init__(self, embedded: Embedded, thread: ThreadPoolExecutor) -> None:
        """`embedded` was made on the only `thread` of the pool, and belongs to it."""
        self._embedded = embedded
        self._thread = thread
        self._is_closed = False

    @classmethod
    def load(
        cls, target: str, draft: str, options: EngineOptions, *, profile: Path | None = None
    ) -> "AsyncEmbedded":
        """Load both models by name; blocks until they are. See `Embedded.load`."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slipstream-engine")
        try:
            load = partial(Embedded.load, target, draft, options, profile=profile)
            embedded = thread.submit(load).result()
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(embedded, thread)

    async def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        async with AsyncChunkStream(self.turn(call), request_id=call.request_id) as stream:
            return collected([chunk async for chunk in stream])

    def turn(self, call: Call) -> "_EmbeddedTurn":
        """See `AsyncBackend.turn`."""
        return _EmbeddedTurn(self, lambda: self._embedded.stream(call))

    async def tokenize(self, prompt: Prompt, *, raw: bool, model: str) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        return await self.run(lambda: self._embedded.tokenize(prompt, raw=raw, model=model))

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        return await self.run(lambda: self._embedded.models(model))

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`; there is none."""
        return self._embedded.server_info()

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`."""
        if not self._is_closed:
            await self.run(lambda: self._embedded.end_session(session_id))

    async def aclose(self) -> None:
        """See `Backend.close`. Waits for the round that runs."""
        if not self._is_closed:
            await self.run(self._embedded.close)
            self._is_closed = True
            self._thread.shutdown(wait=False)

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job on the engines' thread. Raises `SessionClosed` after `aclose`."""
        if self._is_closed:
            raise SessionClosed("the client is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    def post(self, job: Callable[[], None]) -> None:
        """The same without waiting for it."""
        if not self._is_closed:
            self._thread.submit(job)


class _EmbeddedTurn:
    """One request, made when its first chunk is asked for."""

    def __init__(self, at: AsyncEmbedded, start: Callable[[], ChunkStream]) -> None:
        self._at = at
        self._start = start
        self._stream: ChunkStream | None = None

    async def read(self) -> Chunk | None:
        """See `Turn.read`."""
        return await self._at.run(self._next)

    async def aclose(self) -> None:
        """See `Turn.aclose`."""
        with suppress(SessionClosed):  # the client was first, and its engines are nobody's
            # Who waits may be cancelled; the engines are freed in any case.
            await asyncio.shield(self._at.run(self._close))

    def cancel(self) -> None:
        """See `Turn.cancel`. Comes after the round that runs."""
        self._at.post(self._close)

    def _next(self) -> Chunk | None:
        if self._stream is None:
            self._stream = self._start()
        return next(self._stream, None)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
