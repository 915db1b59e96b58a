"""A target elsewhere, behind the same port as one in this process. For one request of a session.

Knows the wire; not how the replica was chosen.
"""

from dataclasses import replace

from slipstream.core.errors import InternalError, InvalidRequest
from slipstream.core.types import Delta, Proposal, ReplyTiming, Session, Verdict
from slipstream.core.verdict_check import check_verdict
from slipstream.rpc.convert import (
    session_to_pb,
    timing_from_pb,
    verdict_from_pb,
    verify_to_pb,
)
from slipstream.rpc.exchange import Exchange, Peer, Terms, parsed
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.telemetry.carrier import carried

MAX_CREDENTIAL_CHARS = 256
VERIFY = "/slipstream.rpc.v1.TargetService/Verify"


class RemoteTarget:
    """`core.ports.Target` over one stream, which the first call opens.

    Everything the stream holds at the other end is freed when it is released, or parked.
    """

    def __init__(self, peer: Peer, expected: common_pb2.ModelIdentity, terms: Terms) -> None:
        """`expected` is the replica as it described itself; another one refuses."""
        self._peer = peer
        self._expected = expected
        self._terms = terms
        self._exchange = Exchange(peer, VERIFY, terms)
        self._session_id = ""
        self._credential = ""

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`; `timing` says where the time went."""
        clock = self._terms.clock
        began = clock()
        verify = verify_to_pb(delta, proposal)
        trace = trace_to_pb(carried())
        message = target_pb2.VerifyRequest(verify=verify, trace=trace).SerializeToString()
        packed_s = clock() - began
        num_tokens = len(delta.tokens)
        answer = await self._ask(session, message, num_tokens=num_tokens)
        if parsed(target_pb2.VerifyResponse, answer, self._peer.name).HasField("queued"):
            limit_s = self._terms.queue_s + self._terms.limit_s(num_tokens)
            answer = await self._exchange.more(limit_s)
        began = clock()
        verdict, timing = self._verdict(answer)
        self._check(session, delta, proposal, verdict)
        serialisation_s = packed_s + clock() - began
        return replace(verdict, timing=timing_from_pb(timing, serialisation_s=serialisation_s))

    async def release(self, session_id: str) -> None:
        """End the stream, which frees its session. Again, or before the first call, is fine."""
        self.end()

    def end(self) -> None:
        """The same at once, whatever the session."""
        self._exchange.cancel()

    def give_up(self, reason: str) -> None:
        """The same; whoever waits for an answer gets `Unavailable` with this reason."""
        self._exchange.give_up(reason)

    async def park(self, ttl_s: float) -> None:
        """End the stream, but have the session kept for its next turn."""
        if not self._exchange.is_open:
            return
        park = draft_pb2.Park(ttl_ms=round(ttl_s * 1000))
        message = target_pb2.VerifyRequest(park=park).SerializeToString()
        await self._exchange.finish(message)

    def feed(self, address: str) -> draft_pb2.KvFeed | None:
        """Where a draft reads the session's keys and values; None before the first verdict."""
        if not self._credential:
            return None
        return draft_pb2.KvFeed(
            address=address,
            session_id=self._session_id,
            incarnation=self._expected.incarnation,
            credential=self._credential,
        )

    async def open(self, session: Session) -> None:
        """Take the session over. Ending it without more frees what was parked."""
        self._session_id = session.session_id
        opened = await self._exchange.ask(self._opening(session).SerializeToString())
        credential = self._part(opened, "opened").opened.kv_credential
        if len(credential) > MAX_CREDENTIAL_CHARS:
            raise InternalError(
                f"{self._peer.name} gave a credential of {len(credential)} characters, above"
                f" {MAX_CREDENTIAL_CHARS}"
            )
        self._credential = credential

    async def _ask(self, session: Session, message: bytes, *, num_tokens: int) -> bytes:
        if not self._exchange.is_open:
            await self.open(session)
        return await self._exchange.ask(message, num_tokens=num_tokens)

    def _opening(self, session: Session) -> target_pb2.VerifyRequest:
        params = session_to_pb(session, fence=self._terms.fence)
        return target_pb2.VerifyRequest(
            open=target_pb2.OpenTarget(
                session=params,
                expected=self._expected,
                max_queue_ms=round(self._terms.queue_s * 1000),
            )
        )

    def _verdict(self, answer: bytes) -> tuple[Verdict, common_pb2.ReplyTiming]:
        message = self._part(answer, "verdict").verdict
        try:
            return verdict_from_pb(message, ReplyTiming()), message.timing
        except InvalidRequest as error:
            raise self._broken(error) from None

    def _check(self, session: Session, delta: Delta, proposal: Proposal, verdict: Verdict) -> None:
        vocab_size = self._expected.vocab_size
        try:
            check_verdict(session, delta, proposal, verdict, vocab_size=vocab_size)
        except InvalidRequest as error:
            raise self._broken(error) from None

    def _broken(self, error: InvalidRequest) -> InternalError:
        return InternalError(f"{self._peer.name} gave a broken verdict: {error}")

    def _part(self, answer: bytes, part: str) -> target_pb2.VerifyResponse:
        message = parsed(target_pb2.VerifyResponse, answer, self._peer.name)
        got = message.WhichOneof("message")
        if got != part:
            raise InternalError(f"{self._peer.name} answered {got}, but {part} was due")
        return message
