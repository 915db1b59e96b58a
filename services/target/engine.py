"""The target as an engine: sessions, their caches, and verification of many in one forward.

Knows no wire and no queue: who joins which forward is decided elsewhere (`schedule.py`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from slipstream.core.draws import walk_drawn
from slipstream.core.errors import CapacityError, SessionNotFound, SlipstreamError
from slipstream.core.finish import finish
from slipstream.core.history import apply_delta
from slipstream.core.offer import Offer
from slipstream.core.proposal_check import check_proposal
from slipstream.core.timing import Clock
from slipstream.core.tree import ROOT
from slipstream.core.types import Delta, FinishReason, Proposal, Session, Verdict
from slipstream.core.verify import verify
from slipstream.core.walk import Walk
from slipstream.engine.thread import internal_errors
from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.cores import beside
from slipstream.models.draws import Drawn
from slipstream.models.kv_layout import KEY_BLOCK, KvLayout
from slipstream.models.scorer import KvView
from slipstream.target.admission import check_call, check_length
from slipstream.target.drawing import draws_of, is_drawn
from slipstream.target.grammars import Grammars, follower_of, prepared
from slipstream.target.memory import KvMemory
from slipstream.target.metering import HarmlessMeter, Meter, StepTaken
from slipstream.target.taps import KvTap
from slipstream.target.verification import Held, Share, Verification

Decision = Callable[[], Walk]
"""How far a proposal is right; raises what `core.verify` does."""

ALONE_ROWS = 256
"""Pending tokens that a session alone processes at once."""


class LocalTarget:
    """`core.ports.Target` over a model in this process, for one thread at a time."""

    def __init__(
        self,
        model: CausalModel,
        memory: KvMemory,
        meter: Meter,
        *,
        max_sessions: int = 64,
        grammars: Grammars | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """`meter` says what a session's next round may have; `grammars` are those of outputs."""
        self._model = model
        self._memory = memory
        self._meter = HarmlessMeter(meter)
        self._max_sessions = max_sessions
        self.grammars = grammars
        self._clock, self._ended = clock, clock()
        self._held: dict[str, Held] = {}

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`; the session has the engine to itself."""
        _held = prepared(self.grammars, session)
        work = self.begin(session, delta, proposal)
        while not work.is_done:
            self.step([Share(work, min(work.num_pending, ALONE_ROWS))])
        return work.result()

    def begin(self, session: Session, delta: Delta, proposal: Proposal) -> Verification:
        """Take in what a verification is about. Every `step` with a share of it takes it further.

        What is refused, changes nothing. Raises what `core.ports.Target.verify` does, `NoRoom`
        while others hold the memory that the session needs, `CapacityError` if it can never be.
        """
        model = self._model
        check_call(
            session,
            delta,
            proposal,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
        )
        held = self._held.get(session.session_id)
        before = held.tokens if held else []
        tokens, num_same = apply_delta(before, delta)
        check_length(session, len(tokens))
        roots = held.roots if held and tokens == before else ()
        check_proposal(session, proposal, vocab_size=model.vocab_size, roots=roots)
        known = held.follower if held else None
        follower = follower_of(self.grammars, session, tokens, known)
        held = held or self._new()
        # The last token is always processed again: its row says what comes next.
        cache = self._room(session, held, tokens, min(num_same, len(tokens) - 1))
        self._held[session.session_id] = held
        held.tokens, held.roots, held.cache, held.follower = tokens, roots, cache, follower
        for tap in held.taps:
            tap.lower(cache.count)
        return Verification(session, proposal, tokens, cache, held, cache.count)

    @internal_errors("target")
    def step(self, shares: Sequence[Share]) -> None:
        """One forward for all shares, of different verifications; those decided by it are done."""
        with beside(self._model.engine):
            self._step(shares)

    def _step(self, shares: Sequence[Share]) -> None:
        began = self._clock()
        keys = sum(share.num_rows * share.work.cache.count for share in shares)
        parts = [share.part() for share in shares]
        draws = draws_of(shares) if self._model.has_shapes else []
        drawn = self._model.draw(parts, draws) if draws else None
        if drawn is None:
            hidden, places = self._model.forward(parts)
            walks = self._verified(hidden, shares)
        else:
            hidden, places = drawn.hidden, drawn.places
            walks = self._followed(drawn, shares)
        offer = self._meter.offer(sum(share.is_last for share in shares))
        for share, slots in zip(shares, places, strict=True):
            if share.is_last:
                self._decide(share, slots, next(walks), offer)
            else:
                share.work.cache.keep(slots)
        is_drafted = any(share.is_last and share.work.num_nodes for share in shares)
        waited_s, self._ended = began - self._ended, self._clock()
        seconds = self._ended - began
        self._meter.record(StepTaken(len(hidden), len(shares), keys, seconds, waited_s, is_drafted))

    def park(self, session_id: str) -> None:
        """Let others have a session's memory until its next turn. Unknown ids are fine."""
        held = self._held.get(session_id)
        if held is not None:
            self._leave(held)

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`."""
        held = self._held.pop(session_id, None)
        if held is not None:
            self._leave(held)

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """The keys and values of a session's final tokens, without a copy where possible."""
        return self._cache(session_id).view(layers)

    @property
    def layout(self) -> KvLayout:
        """Shape of a session's keys and values."""
        return self._model.layout

    @property
    def memory(self) -> KvMemory:
        """Where keys and values are."""
        return self._memory

    def tap(self, session_id: str, layers: Sequence[int], start: int) -> KvTap:
        """Read a session's keys and values slice by slice, from a position on.

        Raises `SessionNotFound`, and whatever `KvTap` refuses. The tap ends with the session, and
        the engine forgets it when nobody holds it any more.
        """
        tap = KvTap(self._cache(session_id), layers, start)
        self._held[session_id].taps.add(tap)
        return tap

    def kv_bytes(self, session_id: str) -> int:
        """Bytes of keys and values that a session holds; 0 for an unknown one. Any thread."""
        held = self._held.get(session_id)
        cache = held.cache if held else None
        return cache.num_bytes if cache else 0

    @property
    def num_kv_bytes(self) -> int:
        """Bytes of keys and values of all sessions, and of those kept. Any thread."""
        return self._memory.pool.num_used_bytes

    def _new(self) -> Held:
        if len(self._held) >= self._max_sessions:
            raise CapacityError(f"{len(self._held)} sessions are open, the limit")
        return Held()

    def _room(self, session: Session, held: Held, tokens: Sequence[int], num_same: int) -> KvCache:
        """The session's cache, with room for all that its request may become.

        It holds the first `num_same` of the tokens, or of a parked session's what is left of them.
        """
        needed = session.num_prompt_tokens + session.max_tokens
        if held.cache is None:
            return self._memory.open(tokens, needed)
        self._memory.extend(held.cache, needed, count=min(num_same, held.cache.count))
        return held.cache

    def _cache(self, session_id: str) -> KvCache:
        held = self._held.get(session_id)
        if held is None or held.cache is None:
            raise SessionNotFound(f"no session {session_id} is held")
        return held.cache

    def _leave(self, held: Held) -> None:
        for tap in held.taps:
            tap.end()
        held.follower = None
        if held.cache is not None:
            self._memory.close(held.cache, held.tokens)
            held.cache = None

    def _followed(self, drawn: Drawn, shares: Sequence[Share]) -> Iterator[Decision]:
        """The decision of each share that is decided now; most by the tokens that its rows drew."""
        others = self._verified(drawn.hidden, shares, is_wanted=lambda share: not is_drawn(share))
        start = 0
        for share in (share for share in shares if share.is_last):
            if is_drawn(share):
                stop = start + 1 + share.work.num_nodes
                yield partial(walk_drawn, share.work.proposal.tree, drawn.tokens[start:stop])
                start = stop
            else:
                yield next(others)

    def _verified(
        self,
        hidden: Tensor,
        shares: Sequence[Share],
        *,
        is_wanted: Callable[[Share], bool] = lambda _: True,
    ) -> Iterator[Decision]:
        """The decision of each wanted share that is decided now, by the logits of its rows."""
        wanted: list[int] = []
        end = 0
        for share in shares:
            end += share.num_rows
            if share.is_last and is_wanted(share):
                wanted += range(end - 1 - share.work.num_nodes, end)
        is_all = len(wanted) == len(hidden)
        logits = self._model.logits(hidden if is_all else hidden[wanted]) if wanted else hidden
        start = 0
        for share in shares:
            if share.is_last and is_wanted(share):
                stop = start + 1 + share.work.num_nodes
                yield partial(_verify, share, logits[start:stop])
                start = stop

    def _decide(
        self, share: Share, slots: Sequence[int], decision: Decision, offer: Offer | None
    ) -> None:
        work = share.work
        held = work.held
        try:
            walk = decision()
        except SlipstreamError as error:
            work.error = error
            return
        places = slots[: share.num_pending], slots[share.num_pending :]
        final, reason = self._settle(work, walk, places)
        num_accepted = min(len(walk.nodes), len(final))
        self._meter.verified(num_nodes=work.num_nodes, num_accepted=num_accepted)
        verdict = Verdict(final, num_accepted, reason, held.roots, offer, work.num_cached)
        told = walk.logprobs[: len(final)]
        forced = work.forced() if reason is None else ()
        work.verdict = replace(verdict, margins=walk.margins, logprobs=told, forced=forced)

    def _settle(
        self, work: Verification, walk: Walk, slots: tuple[Sequence[int], Sequence[int]]
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Make final what the walk decided; `slots` are those of pending tokens and of nodes."""
        held, session = work.held, work.session
        tokens = [work.proposal.tree.tokens[node] for node in walk.nodes]
        if walk.token is not None:
            tokens.append(walk.token)
        num_output = len(held.tokens) - session.num_prompt_tokens
        final, reason = finish(session, num_output, tokens)
        pending, nodes = slots
        work.cache.keep([*pending, *(nodes[node] for node in walk.nodes[: len(final)])])
        if work.cache.count // KEY_BLOCK > work.num_cached // KEY_BLOCK:
            self._memory.remember(work.cache, held.tokens)
        held.tokens += final
        held.roots = walk.roots if reason is None else ()
        return final, reason


def _verify(share: Share, logits: Tensor) -> Walk:
    """Verify by logits [1 + nodes, vocab] after the last final token and after every node."""
    work = share.work
    return verify(
        work.session,
        work.tokens,
        work.proposal,
        lambda node: logits[node + 1].float(),
        roots=work.held.roots,
        constraint=work.held.follower,
    )


assert ROOT == -1, "row 0 of the logits is the root's"
