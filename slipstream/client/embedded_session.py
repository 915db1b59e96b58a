"""A session on engines in this process: turn after turn, each appended to those before."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from slipstream.client.call import ClientCall, late
from slipstream.client.engine import Engine
from slipstream.core.breaker import BreakerLimits, Breakers, InUse
from slipstream.core.draft.ngram_draft import LookupDraft
from slipstream.core.errors import SessionBusy
from slipstream.core.failover import FailoverDraft
from slipstream.core.inline import finished
from slipstream.core.policy.profile import DraftFacts
from slipstream.core.ports import Draft, Target
from slipstream.core.request.request import Generation
from slipstream.core.request.results import Chunk
from slipstream.core.round import Clock
from slipstream.core.run import Run
from slipstream.drafting.build import Drafter
from slipstream.state.memory import MemoryStore
from slipstream.state.session_leases import (
    AcquiredSession,
    KeepRules,
    SessionLeases,
    replayed,
    turn_request,
)
from slipstream.state.store import Bounds, Opening
from slipstream.text.prompts import encode_prompt

_FOR_EVER_S = 1e9
"""Sessions here end with the process, or when they are closed."""
_AGAIN_S = 60.0
"""Time for which a request on its own is answered again under its id."""
_AT_ONCE = BreakerLimits(failures=1)
"""Limits by which the first failure of a draft makes its session decode plainly for a while."""


def process_leases() -> SessionLeases:
    """Return the leases of sessions that end with this process."""
    store = MemoryStore(Bounds(lease_s=_FOR_EVER_S), time.monotonic, next_fence=count(1).__next__)
    rules = KeepRules(_FOR_EVER_S, _AGAIN_S, ends_with_process=True)
    return SessionLeases(store, rules, next_fence=lambda: 0)


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """Ports to the engines of a session. `park` lets others have a session's memory until its next
    turn."""

    draft: Draft
    target: Target
    park: Callable[[str], Awaitable[None]]

    @classmethod
    def direct(cls, engine: Engine, drafter: Drafter) -> "EnginePorts":
        """The engines themselves: nothing is ever waited for."""

        async def park(session_id: str) -> None:
            engine.target.park(session_id)

        return cls(drafter.draft, engine.target, park)


class Answer:
    """One turn on its way. Read it to its end or not, but `end` it."""

    def __init__(
        self, chunks: AsyncGenerator[Chunk, None], end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._chunks = chunks
        self._end = end
        self._is_over = False

    async def read(self) -> Chunk | None:
        """The next chunk; None after the last one, and after the end."""
        return None if self._is_over else await anext(self._chunks, None)

    async def end(self) -> None:
        """Free the engines, unless that was done. It must not be read meanwhile."""
        if not self._is_over:
            self._is_over = True
            await self._chunks.aclose()
            if self._end is not None:
                await self._end()


@dataclass(eq=False)
class EmbeddedSession:
    """A session: its tokens are in a store, its caches in the engines, from turn to turn."""

    engine: Engine
    facts: DraftFacts
    """Facts of the draft behind the port."""
    ports: EnginePorts
    session_id: str
    clock: Clock = time.perf_counter
    _answer: Answer | None = None

    def __post_init__(self) -> None:
        draft, num_ids, name = self.ports.draft, self.engine.facts.vocab_size, self.facts.kind
        draft = _tolerant(draft, name, vocab_size=num_ids, clock=self.clock)
        self.ports = replace(self.ports, draft=LookupDraft(draft, self.engine.store))

    def require_idle(self) -> None:
        """Raises `SessionBusy` while a turn is on its way."""
        if self._answer is not None:
            raise SessionBusy(f"session {self.session_id} is busy with another request")

    def turn(self, call: ClientCall, taken: AcquiredSession, *, is_last: bool = False) -> Answer:
        """Run one request. Bad input raises here, before the first chunk is asked for.

        The caches are freed with the end of the last turn, and parked with that of any other.
        """
        asked, (record, journal) = call.generation, taken
        if journal is None:
            engine = self.engine
            said = replayed(asked, record, engine.facts, engine.text.decode)
            return Answer(_said_before(said))
        try:
            encode = partial(self._encode, asked)
            request = finished(turn_request(asked, record, self.engine.facts, self.facts, encode))
        except BaseException:
            finished(journal.close(target=None, draft=None))
            raise
        journal.open(request.tokens, Opening(len(request.tokens), self.engine.tokenizer_hash))
        ports = self.ports.draft, self.ports.target
        run = Run(*ports, request, text=self.engine.text, clock=self.clock, journal=journal)

        async def end() -> None:
            await journal.close(target=None, draft=None)
            try:
                await (self.release() if is_last else self.ports.park(self.session_id))
            finally:
                self._answer = None

        self._answer = Answer(self._timely(run.chunks(), call.timeout_s), end)
        return self._answer

    async def release(self) -> None:
        """End the turn that runs, if any, and free what the engines hold."""
        if self._answer is not None:
            await self._answer.end()
        await self.ports.draft.release(self.session_id)
        await self.ports.target.release(self.session_id)

    async def _timely(
        self, chunks: AsyncGenerator[Chunk, None], timeout_s: float | None
    ) -> AsyncGenerator[Chunk, None]:
        began = self.clock()
        async with aclosing(chunks):
            async for chunk in chunks:
                if timeout_s is not None and self.clock() > began + timeout_s:
                    raise late(timeout_s)
                yield chunk

    async def _encode(self, asked: Generation, last_token: int | None) -> tuple[int, ...]:
        text, form = self.engine.text, asked.ask.form
        return encode_prompt(text, asked.prompt, form, last_token=last_token)


def _tolerant(draft: Draft, name: str, *, vocab_size: int, clock: Clock) -> FailoverDraft:
    """Return the draft of a session, which never raises: a failure makes a round a plain one."""

    async def park(ttl_s: float) -> None:
        """Keep what is held: it gives way when others need the memory."""

    def choose(excluded: Collection[str]) -> InUse[Draft] | None:
        return None if name in excluded else InUse(name, draft, park)

    own, shared = Breakers(clock, _AT_ONCE), Breakers(clock)
    return FailoverDraft(choose=choose, own=own, shared=shared, vocab_size=vocab_size)


async def _said_before(chunk: Chunk) -> AsyncGenerator[Chunk, None]:
    yield chunk
