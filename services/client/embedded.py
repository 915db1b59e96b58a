"""Both engines in this process: no network, no other service."""

import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from slipstream.client.embedded_session import Answer, EmbeddedSession, Ports
from slipstream.client.engine import Engine, EngineOptions
from slipstream.client.stream import ChunkStream
from slipstream.client.surface import Call
from slipstream.core.errors import (
    InvalidRequest,
    ModelNotFound,
    SessionClosed,
    SessionNotFound,
)
from slipstream.core.inline import finished
from slipstream.core.model_info import Limits, ModelInfo, drafter_infos, verification_infos
from slipstream.core.prompt import Prompt, checked_prompt
from slipstream.core.results import Result, collected
from slipstream.core.server_info import ServerInfo
from slipstream.draft.build import Drafter
from slipstream.state.memory import MemoryStore
from slipstream.state.record import Bounds
from slipstream.state.session_leases import KeepRules, SessionLeases, session_of
from slipstream.text.prompts import encode_prompt

_FOR_EVER_S = 1e9
"""Sessions here end with the process, or when they are closed."""
_AGAIN_S = 60.0
"""For how long a request on its own is answered again under its id."""


class Embedded:
    """See `client.backend.Backend`: a target and one draft, and the sessions on them.

    For one thread at a time; for an event loop where the ports are, by `turn`.
    """

    def __init__(self, engine: Engine, drafter: Drafter, ports: Ports | None = None) -> None:
        """`ports` None are the engines themselves."""
        self._engine = engine
        self._drafter = drafter
        self._ports = ports or Ports.direct(engine, drafter)
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
    ) -> "Embedded":
        """Load both models by name; `profile` is a file that takes the place of the draft's own."""
        engine = Engine.load(target, options)
        return cls(engine, engine.drafter(draft, profile=profile))

    def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        with self.stream(call) as chunks:
            return collected(chunks)

    def stream(self, call: Call) -> ChunkStream:
        """See `Backend.stream`."""
        answer = self.turn(call)
        chunks = iter(lambda: finished(answer.read()), None)
        return ChunkStream(chunks, lambda: finished(answer.end()), request_id=call.request_id)

    def turn(self, call: Call) -> Answer:
        """A request that is ready to be read. What can be refused is."""
        asked = call.generation
        self._require(asked.model)
        ask = asked.ask
        checked_prompt(asked.prompt, raw=ask.raw, allow_special_tokens=ask.allow_special_tokens)
        if asked.num_received:
            raise InvalidRequest("num_received goes with a router: what runs here can't break off")
        session_id = session_of(asked, "")
        session = self._sessions.get(session_id) or self._new(session_id)
        session.require_idle()
        taken = finished(self._leases.acquire(asked, "", self._engine.model_id))
        answer = session.turn(call, taken, is_last=asked.session is None)
        if asked.session is not None:  # now that its first turn is none to refuse
            self._sessions[session_id] = session
        return answer

    def tokenize(
        self, prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
    ) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        self._require(model)
        text = self._engine.text
        return encode_prompt(text, prompt, raw=raw, allow_special_tokens=allow_special_tokens)

    def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        self._require(model)
        engine, draft = self._engine, self._drafter.facts
        drafters = drafter_infos([draft])
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

    def server_info(self) -> ServerInfo:
        """See `Backend.server_info`; there is none."""
        raise InvalidRequest("the engines are in this process, so there is no router to ask about")

    def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`."""
        finished(self.free(session_id))

    async def free(self, session_id: str) -> None:
        """Free what is kept for a session; unknown ids are fine."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.release()
            with suppress(SessionNotFound):
                await self._leases.delete(session_id, "")

    def close(self) -> None:
        """See `Backend.close`."""
        self._is_closed = True

    def _require(self, model: str) -> None:
        if self._is_closed:
            raise SessionClosed("the client is closed")
        if model not in ("", self._engine.model_id):
            raise ModelNotFound(
                f"the model is {model!r}, but only {self._engine.model_id!r} is here"
            )

    def _new(self, session_id: str) -> EmbeddedSession:
        return EmbeddedSession(self._engine, self._drafter.facts, self._ports, session_id)
