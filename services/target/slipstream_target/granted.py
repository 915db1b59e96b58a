"""Rounds that a router grants: after each verdict the target goes on by itself, plainly or with a
proposal of the draft that reads the session's keys and values."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from slipstream.core.errors import DeadlineExceeded, InvalidRequest, SlipstreamError, Unavailable
from slipstream.core.failover import check_size, lacking, reason_of
from slipstream.core.round import LATE, Clock
from slipstream.core.sequence import Delta, TokenSequence
from slipstream.core.types import Proposal, Verdict
from slipstream.core.verify.port_checks import check_proposal
from slipstream.rpc.conversion.convert import proposed_from_pb
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.leases import Lease
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2

MAX_UNREAD = 64
"""Messages of a router that wait for the round before them, at most."""


class Inbox:
    """Messages of a `Verify` stream, read as they come. Close it."""

    def __init__(self, lease: Lease, messages: AsyncIterator[target_pb2.VerifyRequest]) -> None:
        self.is_granting = False
        """True while rounds may be granted: False drops what was granted so far."""
        self._unread: deque[target_pb2.VerifyRequest] = deque()
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._reader = asyncio.get_running_loop().create_task(self._read(lease, messages))

    async def next(self) -> target_pb2.VerifyRequest | None:
        """Wait for the next message, a grant once for each of its rounds; None at the end.

        Raises `SessionTaken` once the lease is lost, `InvalidRequest` where too many messages wait.
        """
        while True:
            if self._error is not None:
                raise self._error
            grant = self.granted()
            if grant is not None:
                grant.num_rounds -= 1
                return self._unread[0] if grant.num_rounds else self._unread.popleft()
            if self._unread:
                return self._unread.popleft()
            if self._reader.done():
                return None
            self._news.clear()
            await self._news.wait()

    def granted(self) -> target_pb2.GrantRounds | None:
        """Return the grant of the next round, if that is what comes next. The last message of a
        request, which parks its session, ends them."""
        while self._unread and self._unread[0].HasField("grant"):
            grant, is_over = self._unread[0].grant, self._unread[-1].HasField("park")
            if self.is_granting and grant.num_rounds and not is_over:
                return grant
            self._unread.popleft()
        return None

    def close(self) -> None:
        """Read no more."""
        self._reader.cancel()

    async def _read(self, lease: Lease, messages: AsyncIterator[target_pb2.VerifyRequest]) -> None:
        try:
            while (message := await lease.next(messages)) is not None:
                if len(self._unread) == MAX_UNREAD:
                    raise InvalidRequest(f"more than {MAX_UNREAD} messages wait for a round")
                self._unread.append(message)
                self._news.set()
        except Exception as error:
            self._error = error
        finally:
            self._news.set()


class KvReader:
    """A reader of a session's keys and values, which may propose for granted rounds, on request."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.news = asyncio.Event()
        """Set when there may be more to send, or an error to be raised."""
        self.timeout = timeout
        self._unsent: draft_pb2.Propose | None = None
        self._due: asyncio.Future[draft_pb2.Proposed | None] | None = None
        self._num_told = 0
        self._is_closed = False
        self._error: InvalidRequest | None = None

    @property
    def is_due(self) -> bool:
        """Return whether a proposal was requested and has not come."""
        return self._due is not None and not self._due.done()

    def request(self, sequence: TokenSequence, plan: draft_pb2.Plan, *, since: int) -> None:
        """Request the proposal that continues the sequence. The draft holds the first `since`
        tokens at least, and those of former requests."""
        delta = Delta.since(max(since, self._num_told), sequence)
        self._num_told = len(sequence)
        self._due = asyncio.get_running_loop().create_future()
        if self._is_closed:
            self._due.set_result(None)
        message = message_of(common_pb2.Delta, delta)
        self._unsent = draft_pb2.Propose(delta=message, plan=plan)
        self.news.set()

    def requested(self) -> draft_pb2.Propose | None:
        """Return what is to be sent, once."""
        unsent, self._unsent = self._unsent, None
        return unsent

    async def proposed(self) -> draft_pb2.Proposed:
        """Wait for what was requested; what comes later is dropped. Raises `Unavailable` where the
        draft has left, or has no proposal."""
        proposed = None if self._due is None else await asyncio.shield(self._due)
        if proposed is None or not proposed.HasField("proposal"):
            raise Unavailable("the draft has no proposal")
        return proposed

    def check(self) -> None:
        """Raise `InvalidRequest` if a proposal came that was not requested."""
        if self._error is not None:
            raise self._error

    async def read(self, messages: AsyncIterator[target_pb2.StreamKvRequest]) -> None:
        """Take proposals as they come, until one was not requested."""
        async for message in messages:
            if not message.HasField("proposed") or self._due is None or self._due.done():
                self._error = InvalidRequest("a proposal was sent that was not requested")
                self.news.set()
                return
            self._due.set_result(message.proposed)

    def close(self) -> None:
        """Have it propose no more. Again is fine."""
        self._is_closed = True
        if self._due is not None and not self._due.done():
            self._due.set_result(None)


@dataclass(frozen=True, slots=True)
class GrantedProposal:
    """Proposal of a granted round: as it came, with the reason if there is none, and as a value.
    `seconds` are those from the verdict before."""

    proposed: draft_pb2.Proposed
    proposal: Proposal
    seconds: float


class GrantedRounds:
    """The granted rounds of one request, and the draft that proposes for them."""

    def __init__(self, *, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._proposals: KvReader | None = None
        self._num_known = 0
        self._most_nodes: int | None = None
        self._decided_s = 0.0
        self._plan: draft_pb2.Plan | None = None
        """Plan of the next round; None: it is plain."""
        self._is_begun = self._is_requested = False
        self._has_draft = asyncio.Event()

    def propose_by(self, proposals: KvReader | None) -> None:
        """Have another draft propose, or none."""
        if self._proposals is not None:
            self._proposals.close()
        self._proposals = proposals
        if proposals is not None:
            self._has_draft.set()

    def asked(self, num_tokens: int) -> None:
        """Note that the router requests a round behind so many tokens, which its draft has."""
        self._num_known = num_tokens

    def decided(self, verdict: Verdict) -> None:
        """Note the verdict of a round."""
        self._decided_s = self._clock()
        self._most_nodes = None if verdict.offer is None else verdict.offer.rows - 1

    def request(self, grant: target_pb2.GrantRounds, sequence: TokenSequence) -> None:
        """Request the proposal of the next round, behind the sequence, if the draft is there."""
        session = sequence.session
        remaining = session.num_prompt_tokens + session.max_tokens - len(sequence)
        self._plan = _fitting(grant.plan, remaining, self._most_nodes)
        self._is_begun, self._is_requested = True, False
        self._request(sequence)

    async def proposal(
        self, grant: target_pb2.GrantRounds, sequence: TokenSequence, *, vocab_size: int
    ) -> GrantedProposal:
        """Return what the next round verifies, behind the sequence; wait for it as long as the
        grant has it."""
        if not self._is_begun:
            self.request(grant, sequence)
        self._is_begun = False
        if self._plan is None:
            return GrantedProposal(draft_pb2.Proposed(), Proposal(), 0.0)
        try:
            proposed = await self._proposed(sequence, grant.max_wait_ms / 1000)
            proposal = proposed_from_pb(proposed)
            depth = max(self._plan.max_depth, self._plan.lookup.max_depth)
            check_size(proposal, self._plan.max_nodes, depth)
            check_proposal(sequence.session, proposal, vocab_size=vocab_size)
            proposed.fallback = lacking(proposal) or ""
        except SlipstreamError as error:
            reason = LATE if isinstance(error, DeadlineExceeded) else reason_of(error)
            proposed, proposal = draft_pb2.Proposed(fallback=reason), Proposal()
        return GrantedProposal(proposed, proposal, self._clock() - self._decided_s)

    async def _proposed(self, sequence: TokenSequence, limit_s: float) -> draft_pb2.Proposed:
        try:
            async with asyncio.timeout(limit_s):
                await self._has_draft.wait()
                self._request(sequence)
                if self._proposals is None or not self._is_requested:
                    raise TimeoutError  # an earlier proposal is still due
                return await self._proposals.proposed()
        except TimeoutError:
            raise DeadlineExceeded("the draft did not propose in time") from None

    def _request(self, sequence: TokenSequence) -> None:
        proposals, plan = self._proposals, self._plan
        if self._is_requested or plan is None or proposals is None or proposals.is_due:
            return
        self._is_requested = True
        proposals.request(sequence, plan, since=self._num_known)


def _fitting(plan: draft_pb2.Plan, remaining: int, most_nodes: int | None) -> draft_pb2.Plan | None:
    """Return a granted plan within what the request may still have, and what the target offers for
    the round; None for a plain round."""
    depth = min(plan.max_depth, remaining - 1)
    nodes = plan.max_nodes if most_nodes is None else min(plan.max_nodes, most_nodes)
    if depth < 1 or nodes < 1:
        return None
    own = draft_pb2.Plan()
    own.CopyFrom(plan)
    own.max_depth, own.max_nodes = depth, nodes
    del own.widths[depth:]
    if own.HasField("lookup"):
        own.lookup.max_depth = min(own.lookup.max_depth, remaining - 1)
    return own
