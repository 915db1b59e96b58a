"""The target as an engine: sessions, their caches, and verification of many in one forward.

Free of wire and queue: which requests join which forward is decided elsewhere (`schedule.py`).
"""

import time
from collections.abc import Sequence
from weakref import WeakSet

from slipstream.core.errors import CapacityError, SessionNotFound, SlipstreamError, check_token_ids
from slipstream.core.row_costs import Offer
from slipstream.core.sequence import TokenSequence, finish
from slipstream.core.types import FinishReason, Proposal, Verdict
from slipstream.core.verify.port_checks import check_proposal
from slipstream.core.verify.walk import Walk
from slipstream.engine.thread import InternalErrors
from slipstream.models.causal import CausalModel
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout
from slipstream.models.scorer import KvView
from slipstream.verifying.decision import Batch, Decision, forward
from slipstream.verifying.grammars import Grammars, constraint_of
from slipstream.verifying.kv_sender import KvSender
from slipstream.verifying.memory import KvMemory
from slipstream.verifying.meter import LoadMeter, StepCost
from slipstream.verifying.request import (
    ScheduledRequest,
    TargetRequest,
    TargetSession,
    check_request,
)

MAX_CHUNK = 256
"""Pending tokens that a session alone processes at once."""


class LocalTarget:
    """`core.ports.Target` over a model in this process, for one thread at a time."""

    def __init__(
        self,
        model: CausalModel,
        memory: KvMemory,
        meter: LoadMeter,
        *,
        max_sessions: int = 64,
        grammars: Grammars | None = None,
    ) -> None:
        """`meter` makes the offer of a session's next round; `grammars` are those of outputs."""
        self._model = model
        self.memory = memory
        self._meter = meter
        self._max_sessions = max_sessions
        self.grammars = grammars
        self._sessions: dict[str, TargetSession] = {}

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`; the session has the engine to itself."""
        grammar = sequence.session.grammar
        _held = self.grammars.compile(grammar).result() if self.grammars and grammar else None
        request = TargetRequest(sequence, proposal)
        self.begin(request)
        while not request.is_done:
            with InternalErrors("target"):
                self.step([ScheduledRequest(request, min(request.num_pending, MAX_CHUNK))])
        return request.result()

    def begin(self, request: TargetRequest) -> None:
        """Take in a request's sequence. Every `step` that it is scheduled in takes it further.

        What is refused changes nothing. Raises what `core.ports.Target.verify` does, `NoRoom`
        while others hold the memory that the session needs, `CapacityError` if it can never be.
        """
        sequence, proposal, session = request.sequence, request.proposal, request.session
        vocab_size, context_length = self._model.vocab_size, self._model.context_length
        check_request(sequence, proposal, vocab_size=vocab_size, context_length=context_length)
        known = self._sessions.get(session.session_id)
        held = known or TargetSession()
        num_same = held.synced.num_same(sequence)
        check_token_ids("the sequence", sequence.tokens[num_same:], vocab_size)
        is_next = num_same == len(held.synced.tokens) == len(sequence)
        roots = held.roots if is_next else ()
        check_proposal(session, proposal, vocab_size=vocab_size, roots=roots)
        constraint = constraint_of(self.grammars, sequence, held.constraint)
        if known is None and len(self._sessions) >= self._max_sessions:
            raise CapacityError(f"{len(self._sessions)} sessions are open, the limit")
        # The last token is always processed again: its logits are those of the next position.
        cache = self._room(sequence, held.cache, min(num_same, len(sequence) - 1))
        self._sessions[session.session_id] = held
        held.synced.take(sequence)
        held.roots, held.cache, held.constraint = roots, cache, constraint
        for sender in held.kv_senders:
            sender.truncate(cache.count)
        request.held, request.cache, request.num_cached = held, cache, cache.count

    def step(self, batch: Batch) -> None:
        """Compute one forward for what is scheduled, of different requests; those that it decides
        are done."""
        began = time.perf_counter()
        num_tokens = sum([entry.num_tokens for entry in batch])
        num_keys = sum([entry.num_tokens * entry.request.num_keys for entry in batch])
        slots, decisions = forward(self._model, batch)
        offer, next_decision = self._meter.offer(len(decisions)), iter(decisions)
        for entry, own in zip(batch, slots, strict=True):
            if entry.is_last:
                self._decide(entry, own, next(next_decision), offer)
            else:
                entry.request.cache.keep(own)
        seconds = time.perf_counter() - began
        self._meter.record(StepCost(num_tokens, len(batch), num_keys, seconds))

    def park(self, session_id: str) -> None:
        """Let others have a session's memory until its next turn. Unknown ids are fine."""
        if session_id in self._sessions:
            self._leave(self._sessions[session_id])

    async def release(self, session_id: str) -> None:
        held = self._sessions.pop(session_id, None)
        if held is not None:
            self._leave(held)

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """Return the keys and values of a session's final tokens, without a copy if possible."""
        return self._cache(session_id).view(layers)

    def kv_count(self, session_id: str) -> int:
        """Return how many positions of a session are final. Raises `SessionNotFound`."""
        return self._cache(session_id).count

    @property
    def layout(self) -> KvLayout:
        """Shape of a session's keys and values."""
        return self._model.layout

    def kv_sender(
        self, session_id: str, layers: Sequence[int], start: int, skipped: range = range(0)
    ) -> KvSender:
        """Return what reads a session's keys and values slice by slice, from a position on.

        Raises `SessionNotFound`, and whatever `KvSender` refuses. It ends with the session, and
        the engine forgets it when no reader holds it any more.
        """
        sender = KvSender(self._cache(session_id), layers, start, skipped)
        held = self._sessions[session_id]
        held.kv_senders = WeakSet([*held.kv_senders, sender])
        return sender

    def kv_bytes(self, session_id: str) -> int:
        """Return the bytes of keys and values that a session holds; 0 if unknown. Any thread."""
        held = self._sessions.get(session_id)
        cache = held.cache if held else None
        return cache.num_bytes if cache else 0

    def _room(self, sequence: TokenSequence, cache: KvCache | None, num_same: int) -> KvCache:
        """Return the session's cache, with room for all that its request may become.

        It holds the first `num_same` of the tokens, or of a parked session's what is left of them.
        """
        session = sequence.session
        needed = session.num_prompt_tokens + session.max_tokens
        if cache is None:
            # Logits of tokens in the prefix cache are not known any more.
            is_empty = session.has_prompt_logprobs
            return self.memory.open(sequence.tokens, needed, is_empty=is_empty)
        self.memory.extend(cache, needed, count=min(num_same, cache.count))
        return cache

    def _cache(self, session_id: str) -> KvCache:
        held = self._sessions.get(session_id)
        if held is None or held.cache is None:
            raise SessionNotFound(f"no session {session_id} is held")
        return held.cache

    def _leave(self, held: TargetSession) -> None:
        for sender in held.kv_senders:
            sender.close()
        held.constraint = None
        if held.cache is not None:
            self.memory.close(held.cache, held.synced.tokens)
            held.cache = None

    def _decide(
        self, entry: ScheduledRequest, slots: Sequence[int], decision: Decision, offer: Offer | None
    ) -> None:
        request = entry.request
        try:
            walk = decision()
        except SlipstreamError as error:
            request.error = error
            return
        pending, nodes = slots[: entry.num_pending], slots[entry.num_pending :]
        final, reason = self._settle(request, walk, pending, nodes)
        num_accepted, roots = min(len(walk.nodes), len(final)), request.held.roots
        request.verdict = Verdict(
            *(final, num_accepted, reason, roots, offer, request.num_cached),
            logprobs=walk.logprobs[: len(final)],
            prompt_logprobs=tuple(request.prompt_logprobs),
            forced=request.forced() if reason is None else (),
        )

    def _settle(
        self, request: TargetRequest, walk: Walk, pending: Sequence[int], nodes: Sequence[int]
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """Make final what the walk decided; given are the slots of pending tokens and of nodes."""
        held, session, tree = request.held, request.session, request.proposal.tree
        tokens = [tree.tokens[node] for node in walk.nodes]
        if walk.token is not None:
            tokens.append(walk.token)
        num_output = len(request.tokens) - session.num_prompt_tokens
        final, reason = finish(session, num_output, tokens)
        request.cache.keep([*pending, *(nodes[node] for node in walk.nodes[: len(final)])])
        if request.cache.count // BLOCK_SIZE > request.num_cached // BLOCK_SIZE:
            self.memory.remember(request.cache, request.tokens)
        held.synced.tokens += final
        for sender in held.kv_senders:
            sender.look_ahead()
        held.roots = walk.roots if reason is None else ()
        return final, reason
