"""Both engines in this process: no network, no other service.

`Embedded` computes where an answer is read. `AsyncEmbedded`, for asyncio, computes on one thread,
as the engines use the same cores, and its requests share their steps; all else happens on the
caller's event loop.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from slipstream.client.backend import AsyncChunkStream, ChunkSource
from slipstream.client.call import ClientCall, late
from slipstream.client.embedded_session import Answer, EmbeddedSession, EnginePorts, process_leases
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core import errors
from slipstream.core.errors import check_token_ids
from slipstream.core.inline import finished
from slipstream.core.ports import Draft
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.prompt import Prompt, PromptForm, checked_prompt
from slipstream.core.request.results import Chunk, Result, collected
from slipstream.core.request.server_info import ServerInfo
from slipstream.drafting.batcher import BatchedDraft
from slipstream.drafting.build import Drafter
from slipstream.drafting.engine import LocalDraft
from slipstream.engine.thread import EngineThread
from slipstream.state.session_leases import session_of
from slipstream.text.prompts import encode_prompt
from slipstream.verifying.batcher import BatchedTarget


class Embedded:
    """See `Backend`: a target, one draft, and their sessions, for one thread at a time."""

    def __init__(self, engine: Engine, drafter: Drafter, ports: EnginePorts | None = None) -> None:
        """`ports` None are the engines themselves."""
        self.engine, self.drafter = engine, drafter
        self._ports = ports or EnginePorts.direct(engine, drafter)
        self._sessions: dict[str, EmbeddedSession] = {}
        self._leases = process_leases()
        self._is_closed = False
        self.address: str | None = None

    @classmethod
    def load(
        cls, target: str, draft: str, options: EngineOptions, *, profile: Path | None = None
    ) -> Self:
        """Load both models by name; `profile` is a file that takes the place of the draft's own."""
        engine = Engine.load(target, options, draft=draft)
        return cls(engine, engine.drafter(draft, profile=profile))

    def with_token(self, token: str | None) -> "Embedded":
        """See `Backend.with_token`; engines in this process take none."""
        raise errors.InvalidRequest("the engines are in this process, where no token is needed")

    async def generate(self, call: ClientCall) -> Result:
        async with AsyncChunkStream(self.stream(call), request_id=call.request_id) as stream:
            return collected([chunk async for chunk in stream])

    def stream(self, call: ClientCall) -> ChunkSource:
        return _InlineStream(self, call)

    def turn(self, call: ClientCall) -> Answer:
        """Return a request that is ready to be read. Raises what can be refused."""
        generation, ask = call.generation, call.generation.ask
        self._require(generation.model)
        checked_prompt(generation.prompt, ask.form)
        if generation.num_received:
            raise errors.InvalidRequest(
                "num_received goes with a router: what runs here can't break off"
            )
        session_id = session_of(generation, "")
        session = self._sessions.get(session_id)
        if session is None:
            session = EmbeddedSession(self.engine, self.drafter.facts, self._ports, session_id)
        session.require_idle()
        taken = finished(self._leases.acquire(generation, "", self.engine.model_id))
        answer = session.turn(call, taken, is_last=generation.session is None)
        if generation.session is not None:  # now that its first turn is none to refuse
            self._sessions[session_id] = session
        return answer

    async def tokenize(self, prompt: Prompt, form: PromptForm, *, model: str) -> tuple[int, ...]:
        self._require(model)
        return encode_prompt(self.engine.text, prompt, form)

    async def detokenize(self, token_ids: Sequence[int], *, model: str) -> str:
        self._require(model)
        check_token_ids("the text", token_ids, len(self.engine.text))
        return self.engine.text.decode(token_ids)

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        self._require(model)
        return (self.engine.info(self.drafter),)

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`; there is none."""
        raise errors.InvalidRequest("the engines are in this process: there is no router to ask")

    async def end_session(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.release()
            with suppress(errors.SessionNotFound):
                await self._leases.store.delete(session_id, "")

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def aclose(self) -> None:
        self._is_closed = True

    def _require(self, model: str) -> None:
        if self._is_closed:
            raise errors.SessionClosed("the client is closed")
        only = self.engine.model_id
        if model not in ("", only):
            raise errors.ModelNotFound(f"the model is {model!r}, but only {only!r} is here")


class _InlineStream:
    """See `ChunkSource`: one request, computed where it is read."""

    def __init__(self, engines: Embedded, call: ClientCall) -> None:
        self._engines = engines
        self._call = call
        self._answer: Answer | None = None

    async def start(self) -> None:
        """See `ChunkSource.start`: all that can be refused is, and nothing is computed."""
        self._answer = self._engines.turn(self._call)

    async def read(self) -> Chunk | None:
        return None if self._answer is None else await self._answer.read()

    async def aclose(self) -> None:
        if self._answer is not None:
            await self._answer.end()

    def cancel(self) -> None:
        finished(self.aclose())


class AsyncEmbedded(Embedded):
    """See `Backend`. Belongs to one event loop."""

    def __init__(self, engine: Engine, drafter: Drafter, thread: EngineThread) -> None:
        """Both were made on `thread`, and belong to it."""
        self._thread = thread
        self._target = BatchedTarget(engine.target, thread, engine.budget)
        draft: Draft = drafter.draft
        if isinstance(draft, LocalDraft):  # what only looks at the text needs no thread
            draft = BatchedDraft(draft, thread)
        super().__init__(engine, drafter, EnginePorts(draft, self._target, self._target.park))
        self.running: set[_BatchedStream] = set()
        """Streams from their start to their end."""

    @classmethod
    def load(
        cls, target: str, draft: str, options: EngineOptions, *, profile: Path | None = None
    ) -> Self:
        """Load both models by name; blocks until they are. See `Embedded.load`."""
        thread = EngineThread("slipstream-engine")
        try:
            loaded = thread.call(partial(Embedded.load, target, draft, options, profile=profile))
        except BaseException:
            thread.close()
            raise
        return cls(loaded.engine, loaded.drafter, thread)

    def stream(self, call: ClientCall) -> ChunkSource:
        return _BatchedStream(self, call)

    async def end_session(self, session_id: str) -> None:
        if not self._is_closed:
            await _end([stream for stream in self.running if stream.session_id == session_id])
            await super().end_session(session_id)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """See `Backend.aclose`. Waits for the steps that run."""
        if self._is_closed:
            return
        await super().aclose()
        await _end([*self.running], errors.Cancelled("the client was closed while the request ran"))
        await self._target.close()
        self._thread.close()


class _BatchedStream(_InlineStream):
    """See `ChunkSource`: one request, which ends in a task of its own whatever its reader does."""

    def __init__(self, engines: AsyncEmbedded, call: ClientCall) -> None:
        super().__init__(engines, call)
        self.session_id = call.generation.session and call.generation.session.session_id
        self._running = engines.running
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: float | None = None
        self._reading: asyncio.Task[Chunk | None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ended_by: Exception | None = None

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.get_running_loop()
        if self._call.timeout_s is not None:
            self._deadline = self._loop.time() + self._call.timeout_s
        self._running.add(self)

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
        if self._answer is not None:
            # The caller may be cancelled; the engines are freed in any case.
            await asyncio.shield(self.end())

    def cancel(self) -> None:
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
