"""A session as the target's engine holds it, and a request: one verification of its sequence."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from slipstream.core.errors import (
    InvalidRequest,
    PromptTooLong,
    UnsupportedCombination,
    check_token_ids,
)
from slipstream.core.logprobs import TokenLogprob
from slipstream.core.sequence import SyncedTokens, TokenSequence
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import Proposal, Session, Verdict, Verification
from slipstream.models.kv.cache import KvCache
from slipstream.verifying.grammar_constraint import GrammarConstraint
from slipstream.verifying.kv_sender import KvSender


@dataclass(eq=False, slots=True)
class TargetSession:
    """A session's final tokens, and keys and values of at most all but one."""

    synced: SyncedTokens = field(default_factory=SyncedTokens)
    cache: KvCache | None = None
    """None while the session is parked."""
    roots: tuple[int, ...] = ()
    """Target-initialised roots of the position after the tokens."""
    kv_senders: WeakSet[KvSender] | tuple[()] = ()
    constraint: GrammarConstraint | None = None
    """Constraint of the running request's output, if it has to follow a grammar."""


@dataclass(frozen=True, slots=True)
class TargetStep:
    """A forward: its batched tokens, the sessions that shared it, when it began and how long it
    took. After one that failed, all of them get its error."""

    num_tokens: int
    num_sessions: int
    began: float
    seconds: float
    has_failed: bool = False

    @property
    def ended(self) -> float:
        """Time of its end."""
        return self.began + self.seconds


@dataclass(eq=False, slots=True)
class TargetRequest:
    """A verification, from its arrival until it has a verdict or an error.

    `held` and `cache` are set when the engine begins it; `began` is the time of its first step,
    `engine_s` that of all its steps, `step` the last of them.
    """

    sequence: TokenSequence
    proposal: Proposal
    arrived: float = 0.0
    is_dropped: bool = False
    """No caller waits for it any more. Set on the event loop."""
    held: TargetSession = field(init=False)
    cache: KvCache = field(init=False)
    num_cached: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log probabilities of the prompt's uncached tokens; each step adds its own."""
    began: float | None = None
    engine_s: float = 0.0
    step: TargetStep | None = None
    verdict: Verdict | None = None
    error: Exception | None = None

    @property
    def session(self) -> Session:
        """Parameters of the session's running request."""
        return self.sequence.session

    @property
    def tokens(self) -> list[int]:
        """The session's final tokens, as the engine holds them."""
        return self.held.synced.tokens

    @property
    def num_pending(self) -> int:
        """Final tokens whose keys and values are still to be computed; at least 1 until done."""
        return len(self.tokens) - self.num_keys

    @property
    def num_keys(self) -> int:
        """Final tokens whose keys and values are there: every pending token reads them."""
        return self.cache.count

    @property
    def num_nodes(self) -> int:
        """Nodes of the tree, which join the last pending token."""
        return len(self.proposal.tree)

    @property
    def is_done(self) -> bool:
        """Return whether there is a result."""
        return self.verdict is not None or self.error is not None

    @property
    def queue_s(self) -> float:
        """Seconds from its arrival to its first step; 0 before that."""
        return 0.0 if self.began is None else self.began - self.arrived

    def forced(self) -> tuple[int, ...]:
        """Return the jump-forward tokens behind the tokens held, where they can be of use."""
        constraint, session = self.held.constraint, self.session
        if constraint is None or session.verification is not Verification.EXACT:
            return ()
        return constraint.forced(self.tokens[session.num_prompt_tokens :])

    def result(self) -> Verdict:
        """Return the verdict. Raises the error that there is instead."""
        if self.error is not None:
            raise self.error
        assert self.verdict is not None, "the request is not done"
        return self.verdict


@dataclass(slots=True)
class ScheduledRequest:
    """Part of a request that joins a forward: pending tokens, with the last of them the tree."""

    request: TargetRequest
    num_pending: int
    is_last: bool = field(init=False)
    """True if the forward decides the request."""
    num_tokens: int = field(init=False)
    """Tokens that it adds to the forward, nodes included."""

    def __post_init__(self) -> None:
        self.is_last = self.num_pending == self.request.num_pending
        self.num_tokens = self.num_pending + (self.request.num_nodes if self.is_last else 0)


class PendingRequest:
    """A request that a caller waits for: first for memory, then for its steps."""

    def __init__(
        self,
        request: TargetRequest,
        max_queue_s: float | None,
        on_left: Callable[["PendingRequest"], None],
    ) -> None:
        """`max_queue_s` is the longest time that it may wait for memory, None for no limit;
        `on_left` is called once its caller no longer waits."""
        loop = asyncio.get_running_loop()
        self.request = request
        self._max_queue_s = max_queue_s
        self._on_left = on_left
        self._is_queued: asyncio.Future[bool] = loop.create_future()
        self._done: asyncio.Future[TargetRequest] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def session_id(self) -> str:
        """The session, which has no other pending request."""
        return self.request.sequence.session_id

    async def is_queued(self) -> bool:
        """Wait until it is known whether there is memory for it; return whether it waits for it."""
        try:
            return await self._is_queued
        except BaseException:
            self._on_left(self)
            raise

    async def done(self) -> TargetRequest:
        """Wait for its verdict; return the request, which has it. Raises the error instead."""
        try:
            return await self._done
        finally:
            self._on_left(self)

    def queue(self, on_late: Callable[[str, float], None]) -> None:
        """Start to wait for memory; `on_late` is called with session and limit once that was too
        long. Again is fine."""
        self._set_queued(True)
        limit_s = self._max_queue_s
        if self._timer is None and limit_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limit_s, on_late, self.session_id, limit_s)

    def leave_queue(self) -> None:
        """Wait for memory no longer. Again is fine."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self, error: Exception | None) -> None:
        """End it with its verdict, or with an error, also where its caller no longer waits."""
        self.leave_queue()
        self._set_queued(False)
        if self._done.done():
            return
        if error is None:
            self._done.set_result(self.request)
        else:
            self._done.set_exception(error)
            self._done.exception()  # is seen, also where its caller no longer waits

    def _set_queued(self, is_queued: bool) -> None:
        if not self._is_queued.done():
            self._is_queued.set_result(is_queued)


def check_request(
    sequence: TokenSequence, proposal: Proposal, *, vocab_size: int, context_length: int
) -> None:
    """Raise `InvalidRequest` for what can't be honoured, whatever the engine holds.

    Token ids are not checked.
    """
    session = sequence.session
    limit = session.num_prompt_tokens + session.max_tokens
    if limit > context_length:
        raise PromptTooLong(
            f"a prompt of {session.num_prompt_tokens} tokens and up to {session.max_tokens}"
            f" new ones exceed the context of {context_length} tokens"
        )
    if session.num_roots > min(MAX_NODES, vocab_size):
        raise InvalidRequest(
            f"{session.num_roots} roots are asked for, but at most {min(MAX_NODES, vocab_size)}"
            " can be drawn"
        )
    if session.num_logprobs is not None and not session.verification.is_lossless:
        raise UnsupportedCombination(
            f"logprobs do not go with verification {session.verification.value}"
        )
    check_token_ids("logit_bias", dict(session.sampling.logit_bias), vocab_size)
    check_token_ids("stop_token_ids", session.stop_token_ids, vocab_size)
    if not session.num_prompt_tokens <= len(sequence) < limit:
        raise InvalidRequest(
            f"the session would have {len(sequence)} tokens, but a prompt of"
            f" {session.num_prompt_tokens} and up to {session.max_tokens} new ones need"
            f" {session.num_prompt_tokens} to {limit - 1}"
        )
    if (num_nodes := len(proposal.tree)) > MAX_NODES:
        raise InvalidRequest(f"the proposal has {num_nodes} nodes, but at most {MAX_NODES} fit")
    depth = max(proposal.tree.depths(), default=0)
    if len(sequence) + depth > context_length:
        raise InvalidRequest(
            f"{len(sequence)} tokens and a proposal of depth {depth} exceed the context of"
            f" {context_length} tokens"
        )
