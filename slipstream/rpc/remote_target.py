"""A target elsewhere, behind the same port as one in this process, for one request of a session."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from slipstream.core.errors import InternalError, refused_as
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, ReplyTiming, Session, Verdict
from slipstream.core.verify.port_checks import check_proposal, check_verdict
from slipstream.rpc.conversion.convert import verdict_from_pb
from slipstream.rpc.conversion.convert_common import message_of, proposal_to_pb
from slipstream.rpc.exchange import CallOptions, Peer, RemoteEngine
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.telemetry.spans import carried

MAX_CREDENTIAL_CHARS = 256
MAX_WINDOW = 8
"""Most granted rounds that are under way."""
_SHORTEST_ROUND_S = 0.001
VERIFY = "/slipstream.rpc.v1.TargetService/Verify"


class RemoteTarget(RemoteEngine[target_pb2.VerifyResponse]):
    """`core.ports.Target` over one stream. It ends as soon as the peer is lost."""

    _method, _request, _response = VERIFY, target_pb2.VerifyRequest, target_pb2.VerifyResponse

    def __init__(
        self, peer: Peer, expected: common_pb2.ModelIdentity, options: CallOptions
    ) -> None:
        """`expected` is the replica as it described itself; another one refuses."""
        super().__init__(peer, options)
        self._expected = expected
        self._session_id = ""
        self._credential = ""
        self.num_due = self.num_failed = 0
        """Granted rounds whose verdicts have not come, and those that had no proposal."""
        self._granted: tuple[int, bytes] | None = None
        """Rounds to be granted with the next verification."""
        self._way_s = self._service_s = self._wait_s = 0.0
        """Seconds of the last requested round, on the way and in the target, and those that the
        target may wait for a proposal."""
        if peer.lost is not None:
            give_up = asyncio.get_running_loop().create_task(self._give_up(peer.lost()))
            self._use.callback(give_up.cancel)

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`; `timing` has the parts of the time that it took.

        Where granted rounds are due, this is the next of them: what it verifies is the target's
        choice, and `proposal` is not read.
        """
        clock, is_granted, packed_s = self._options.clock, self.num_due > 0, 0.0
        if is_granted:
            answer = await self._exchange.more(self._wait_s + self._options.limit_s(0))
            response, began = await self._decided(answer, 0)
        else:
            response, packed_s, began = await self._asked(sequence, proposal)
        verdict = self._checked(response, sequence, proposal)
        self._count(verdict, is_granted=is_granted)
        self._num_sent = len(sequence) + len(verdict.tokens)
        timing = verdict.timing or ReplyTiming()
        timing = replace(timing, serialisation_s=packed_s + clock() - began)
        return replace(verdict, timing=timing)

    async def grant(self, plan: Plan, num_rounds: int) -> None:
        """Let the target go on for so many rounds behind those that are due, or behind the next
        verification. It asks the draft that reads its keys and values for proposals under this
        plan, and waits for each for `plan.worth_s`."""
        self._wait_s = self._options.round_s if plan.worth_s is None else plan.worth_s
        grant = target_pb2.GrantRounds(
            num_rounds=num_rounds,
            plan=message_of(draft_pb2.Plan, plan),
            max_wait_ms=round(1000 * self._wait_s),
        )
        message = target_pb2.VerifyRequest(grant=grant).SerializeToString()
        if self.num_due:
            self.num_due += num_rounds
            await self._exchange.send(message)
        else:
            self._granted = num_rounds, message

    @property
    def window(self) -> int:
        """Rounds to be granted at a time, so that the target never waits for a grant."""
        service_s = max(self._service_s, _SHORTEST_ROUND_S)
        return min(2 + int(self._way_s / service_s), MAX_WINDOW)

    async def _asked(
        self, sequence: TokenSequence, proposal: Proposal
    ) -> tuple[target_pb2.VerifyResponse, float, float]:
        """Request a verdict; return the answer, the seconds of packing, and when it came."""
        clock = self._options.clock
        began = clock()
        delta, num_granted = self._news(sequence), 0
        verify = target_pb2.VerifyProposal(
            delta=message_of(common_pb2.Delta, delta),
            proposal=proposal_to_pb(proposal, with_stats=False),  # which targets don't need
        )
        trace = message_of(common_pb2.TraceContext, carried())
        message = target_pb2.VerifyRequest(verify=verify, trace=trace)
        messages = [message.SerializeToString()]
        if self._granted is not None:
            (num_granted, grant), self._granted = self._granted, None
            messages.append(grant)
        sent_s = clock()
        num_tokens = len(delta.tokens)
        if not self._exchange.is_open:
            await self.open(sequence.session)
        answer = await self._exchange.ask(*messages, num_tokens=num_tokens)
        response, came_s = await self._decided(answer, num_tokens)
        self.num_due = num_granted
        self._service_s = response.verdict.timing.service_s
        self._way_s = max(came_s - sent_s - self._service_s, 0.0)
        return response, sent_s - began, came_s

    async def _decided(
        self, answer: bytes, num_tokens: int
    ) -> tuple[target_pb2.VerifyResponse, float]:
        """Return an answer, or the one behind it where the round waits for memory, and when it
        came."""
        came_s, response = self._options.clock(), self._parsed(answer)
        if response.HasField("queued"):
            limit_s = self._options.queue_s + self._options.limit_s(num_tokens)
            answer, came_s = await self._exchange.more(limit_s), self._options.clock()
            response = self._parsed(answer)
        return response, came_s

    def _count(self, verdict: Verdict, *, is_granted: bool) -> None:
        """Count the rounds that are due: a verdict may be the last one of those granted."""
        self.num_due -= is_granted
        has_failed = verdict.proposal is not None and verdict.proposal.fallback is not None
        self.num_failed += has_failed
        if has_failed or verdict.finish_reason is not None:
            self.num_due = 0

    def end(self) -> None:
        self.num_due = 0
        super().end()

    def feed(self, address: str) -> draft_pb2.KvFeed | None:
        """Return where a draft reads keys and values; None before the first verdict."""
        if not self._credential:
            return None
        return draft_pb2.KvFeed(
            address=address,
            session_id=self._session_id,
            incarnation=self._expected.incarnation,
            credential=self._credential,
        )

    async def open(self, session: Session) -> None:
        self._session_id = session.session_id
        options = self._options
        opening = target_pb2.OpenTarget(
            session=message_of(
                common_pb2.SessionParams, session, fence=options.fence, owner=options.owner
            ),
            expected=self._expected,
            max_queue_ms=round(options.queue_s * 1000),
        )
        credential = (await self._opened(opening)).opened.kv_credential
        if len(credential) > MAX_CREDENTIAL_CHARS:
            raise InternalError(
                f"{self._peer.name} gave a credential of {len(credential)} characters, above"
                f" {MAX_CREDENTIAL_CHARS}"
            )
        self._credential = credential

    async def _give_up(self, lost: Awaitable[str]) -> None:
        self._exchange.give_up(await lost)

    def _checked(
        self, response: target_pb2.VerifyResponse, sequence: TokenSequence, proposal: Proposal
    ) -> Verdict:
        message = self._require(response, "verdict").verdict
        session, vocab_size = sequence.session, self._expected.vocab_size
        with refused_as(f"{self._peer.name} gave a broken verdict:", InternalError):
            verdict = verdict_from_pb(message)
            if verdict.proposal is not None:
                proposal = verdict.proposal
                check_proposal(session, proposal, vocab_size=vocab_size)
            check_verdict(sequence, proposal, verdict, vocab_size=vocab_size)
        return verdict
