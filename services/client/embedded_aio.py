"""Both engines in this process, for asyncio: its requests share the steps of both.

The engines compute on one thread of their own, for they use the same cores; all else happens on the
caller's event loop.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipstream.client.embedded import Embedded
from slipstream.client.embedded_session import Answer, EnginePorts
from slipstream.client.engine import Engine, EngineOptions
from slipstream.client.stream import AsyncChunkStream
from slipstream.client.surface import Call, late
from slipstream.core.errors import Cancelled, InvalidRequest
from slipstream.core.model_info import ModelInfo
from slipstream.core.ports import Draft
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, Result, collected
from slipstream.core.server_info import ServerInfo
from slipstream.draft.batcher import BatchedDraft
from slipstream.draft.build import Drafter
from slipstream.draft.engine import LocalDraft
from slipstream.engine.thread import EngineThread
from slipstream.target.batcher import BatchedTarget, BatchLimits


class AsyncEmbedded:
    """See `client.backend.AsyncBackend`. Belongs to one event loop."""

    def __init__(self, engine: Engine, drafter: Drafter, thread: EngineThread) -> None:
        """Both were made on `thread`, and belong to it."""
        self.engine, self.drafter = engine, drafter
        self._thread = thread
        self._target = BatchedTarget(engine.target, thread, BatchLimits(engine.rows))
        ports = EnginePorts(_batched(drafter.draft, thread), self._target, self._target.park)
        self._embedded = Embedded(engine, drafter, ports)
        self._turns: set[_EmbeddedTurn] = set()
        self._is_closed = False
        self.address: str | None = None

    @classmethod
    def load(
        cls, target: str, draft: str, options: EngineOptions, *, profile: Path | None = None
    ) -> "AsyncEmbedded":
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

    def with_token(self, token: str | None) -> "AsyncEmbedded":
        """See `AsyncBackend.with_token`; nobody asks for one here."""
        raise InvalidRequest("the engines are in this process, where nobody asks for a token")

    async def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        async with AsyncChunkStream(self.turn(call), request_id=call.request_id) as stream:
            return collected([chunk async for chunk in stream])

    def turn(self, call: Call) -> "_EmbeddedTurn":
        """See `AsyncBackend.turn`."""
        return _EmbeddedTurn(self, call)

    async def tokenize(
        self, prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
    ) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        return self._embedded.tokenize(
            prompt, raw=raw, allow_special_tokens=allow_special_tokens, model=model
        )

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        return self._embedded.models(model)

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`; there is none."""
        return self._embedded.server_info()

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`."""
        if not self._is_closed:
            await self._end([turn for turn in self._turns if turn.session_id == session_id])
            await self._embedded.free(session_id)

    async def aclose(self) -> None:
        """See `Backend.close`. Waits for the steps that run."""
        if self._is_closed:
            return
        self._is_closed = True
        self._embedded.close()
        await self._end(list(self._turns), Cancelled("the client was closed while the request ran"))
        await self._target.close()
        self._thread.close()

    def begin(self, turn: "_EmbeddedTurn", call: Call) -> Answer:
        """What a turn is to read. Raises what can be refused."""
        answer = self._embedded.turn(call)
        self._turns.add(turn)
        return answer

    def over(self, turn: "_EmbeddedTurn") -> None:
        """Forget a turn that has ended."""
        self._turns.discard(turn)

    async def _end(self, turns: Sequence["_EmbeddedTurn"], error: Exception | None = None) -> None:
        if endings := [turn.end(error) for turn in turns]:
            await asyncio.wait(endings)


class _EmbeddedTurn:
    """One request, made when its first chunk is asked for."""

    def __init__(self, at: AsyncEmbedded, call: Call) -> None:
        self.session_id = call.generation.session and call.generation.session.session_id
        self._at = at
        self._call = call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: float | None = None
        self._answer: Answer | None = None
        self._reading: asyncio.Task[Chunk | None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ended_by: Exception | None = None

    async def read(self) -> Chunk | None:
        """See `Turn.read`. None also after the end."""
        if self._is_over():
            return self._nothing()
        answer = self._answer or self._begin()
        self._reading = asyncio.create_task(answer.read())
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._reading
        except TimeoutError:
            raise late(self._call.timeout_s or 0.0) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_over() or (task is not None and task.cancelling()):
                raise
            return self._nothing()

    async def aclose(self) -> None:
        """See `Turn.aclose`."""
        if self._answer is not None:
            # Who waits may be cancelled; the engines are freed in any case.
            await asyncio.shield(self.end())

    def cancel(self) -> None:
        """See `Turn.cancel`. Any thread, at any time: it may be the garbage collector's."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and all of it is over
                self._loop.call_soon_threadsafe(self.end)

    def end(self, error: Exception | None = None) -> asyncio.Task[None]:
        """End the request. Whoever reads it gets the error, or nothing more."""
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
            self._at.over(self)

    def _begin(self) -> Answer:
        self._answer = self._at.begin(self, self._call)
        self._loop = asyncio.get_running_loop()
        if self._call.timeout_s is not None:
            self._deadline = self._loop.time() + self._call.timeout_s
        return self._answer

    def _is_over(self) -> bool:
        return self._ending is not None

    def _nothing(self) -> Chunk | None:
        """What is read behind the end."""
        if self._ended_by is not None:
            raise self._ended_by
        return None


def _batched(draft: Draft, thread: EngineThread) -> Draft:
    """A model shares its steps; what only looks at the text costs less than a thread would."""
    return BatchedDraft(draft, thread) if isinstance(draft, LocalDraft) else draft
