"""Both engines in this process: no network, no other service."""

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self

from slipstream.client.backend import AsyncChunkStream, ChunkSource
from slipstream.client.call import ClientCall
from slipstream.client.embedded_session import Answer, EmbeddedSession, EnginePorts
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import InvalidRequest, ModelNotFound, SessionClosed, SessionNotFound
from slipstream.core.inline import finished
from slipstream.core.request.model_info import Limits, ModelInfo, drafter_infos, verification_infos
from slipstream.core.request.prompt import (
    Prompt,
    PromptForm,
    check_token_range,
    checked_prompt,
)
from slipstream.core.request.results import Chunk, Result, collected
from slipstream.core.request.server_info import ServerInfo
from slipstream.drafting.build import Drafter
from slipstream.state.memory import MemoryStore
from slipstream.state.session_leases import KeepRules, SessionLeases, session_of
from slipstream.state.store import Bounds
from slipstream.text.prompts import encode_prompt

_FOR_EVER_S = 1e9
"""Sessions here end with the process, or when they are closed."""
_AGAIN_S = 60.0
"""Time for which a request on its own is answered again under its id."""


class Embedded:
    """See `Backend`: a target and one draft on the caller's thread, and the sessions on them.

    It blocks. For one thread at a time.
    """

    def __init__(self, engine: Engine, drafter: Drafter, ports: EnginePorts | None = None) -> None:
        """`ports` None are the engines themselves."""
        self.engine, self.drafter = engine, drafter
        self._ports = ports or EnginePorts.direct(engine, drafter)
        self._sessions: dict[str, EmbeddedSession] = {}
        store = MemoryStore(
            Bounds(lease_s=_FOR_EVER_S), time.monotonic, next_fence=count(1).__next__
        )
        rules = KeepRules(session_ttl_s=_FOR_EVER_S, request_ttl_s=_AGAIN_S)
        self._leases = SessionLeases(store, rules, next_fence=lambda: 0)
        self._is_closed = False
        self.address: str | None = None

    @classmethod
    def load(
        cls, target: str, draft: str, options: EngineOptions, *, profile: Path | None = None
    ) -> Self:
        """Load both models by name; `profile` is a file that takes the place of the draft's own."""
        engine = Engine.load(target, options)
        return cls(engine, engine.drafter(draft, profile=profile))

    def with_token(self, token: str | None) -> "Embedded":
        """See `Backend.with_token`; engines in this process take none."""
        raise InvalidRequest("the engines are in this process, where no token is needed")

    async def generate(self, call: ClientCall) -> Result:
        """See `Backend.generate`."""
        async with AsyncChunkStream(self.stream(call), request_id=call.request_id) as stream:
            return collected([chunk async for chunk in stream])

    def stream(self, call: ClientCall) -> ChunkSource:
        """See `Backend.stream`."""
        return _InlineStream(self, call)

    def turn(self, call: ClientCall) -> Answer:
        """Return a request that is ready to be read. Raises what can be refused."""
        generation, ask = call.generation, call.generation.ask
        self._require(generation.model)
        checked_prompt(generation.prompt, ask.form)
        if generation.num_received:
            raise InvalidRequest("num_received goes with a router: what runs here can't break off")
        session_id = session_of(generation, "")
        session = self._sessions.get(session_id) or self._new_session(session_id)
        session.require_idle()
        taken = finished(self._leases.acquire(generation, "", self.engine.model_id))
        answer = session.turn(call, taken, is_last=generation.session is None)
        if generation.session is not None:  # now that its first turn is none to refuse
            self._sessions[session_id] = session
        return answer

    async def tokenize(self, prompt: Prompt, form: PromptForm, *, model: str) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        self._require(model)
        return encode_prompt(self.engine.text, prompt, form)

    async def detokenize(self, token_ids: Sequence[int], *, model: str) -> str:
        """See `Backend.detokenize`."""
        self._require(model)
        check_token_range(token_ids, len(self.engine.text))
        return self.engine.text.decode(token_ids)

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        self._require(model)
        engine = self.engine
        drafters = drafter_infos([self.drafter.facts])
        info = ModelInfo(
            model=engine.model_id,
            vocab_size=engine.facts.vocab_size,
            tokenizer_hash=engine.tokenizer_hash,
            stop_token_ids=tuple(sorted(engine.facts.stop_token_ids)),
            has_chat_template=bool(engine.text.chat_template),
            numerics=engine.options.numerics,
            dtype=engine.model.weights_type,
            limits=Limits.of(engine.facts),
            verifications=verification_infos({item.kind for item in drafters}),
            drafters=drafters,
        )
        return (info,)

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`; there is none."""
        raise InvalidRequest("the engines are in this process, so there is no router to ask about")

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.release()
            with suppress(SessionNotFound):
                await self._leases.delete(session_id, "")

    async def pause(self, seconds: float) -> None:
        """See `Backend.pause`."""
        time.sleep(seconds)

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        self._is_closed = True

    def _require(self, model: str) -> None:
        if self._is_closed:
            raise SessionClosed("the client is closed")
        if model not in ("", self.engine.model_id):
            raise ModelNotFound(
                f"the model is {model!r}, but only {self.engine.model_id!r} is here"
            )

    def _new_session(self, session_id: str) -> EmbeddedSession:
        return EmbeddedSession(self.engine, self.drafter.facts, self._ports, session_id)


class _InlineStream:
    """See `ChunkSource`: one request, computed where it is read."""

    def __init__(self, engines: Embedded, call: ClientCall) -> None:
        self._engines = engines
        self._call = call
        self._answer: Answer | None = None

    async def start(self) -> Chunk | None:
        """See `ChunkSource.start`: all that can be refused is, and nothing is computed."""
        self._answer = self._engines.turn(self._call)
        return None

    async def read(self) -> Chunk | None:
        """See `ChunkSource.read`."""
        return None if self._answer is None else await self._answer.read()

    async def aclose(self) -> None:
        """See `ChunkSource.aclose`."""
        if self._answer is not None:
            await self._answer.end()

    def cancel(self) -> None:
        """See `ChunkSource.cancel`."""
        finished(self.aclose())
