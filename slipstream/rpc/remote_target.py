"""A target elsewhere, behind the same port as one in this process, for one request of a session."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

from slipstream.core.errors import InternalError, InvalidRequest
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, ReplyTiming, Session, Verdict
from slipstream.core.verify.port_checks import check_verdict
from slipstream.rpc.conversion.convert import timing_from_pb, verdict_from_pb, verify_to_pb
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_engine import RemoteEngine
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.telemetry.spans import carried

MAX_CREDENTIAL_CHARS = 256
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
        if peer.lost is not None:
            give_up = asyncio.get_running_loop().create_task(self._give_up(peer.lost()))
            self._use.callback(give_up.cancel)

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`; `timing` has the parts of the time that it took."""
        clock = self._options.clock
        began = clock()
        delta = self._news(sequence)
        verify = verify_to_pb(delta, proposal)
        trace = trace_to_pb(carried())
        message = target_pb2.VerifyRequest(verify=verify, trace=trace).SerializeToString()
        packed_s = clock() - began
        num_tokens = len(delta.tokens)
        if not self._exchange.is_open:
            await self.open(sequence.session)
        answer = await self._exchange.ask(message, num_tokens=num_tokens)
        began = clock()
        response = self._parsed(answer)
        if response.HasField("queued"):
            limit_s = self._options.queue_s + self._options.limit_s(num_tokens)
            answer = await self._exchange.more(limit_s)
            began = clock()
            response = self._parsed(answer)
        verdict, timing = self._checked(response, sequence, proposal)
        self._num_sent = len(sequence) + len(verdict.tokens)
        serialisation_s = packed_s + clock() - began
        return replace(verdict, timing=timing_from_pb(timing, serialisation_s=serialisation_s))

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
    ) -> tuple[Verdict, common_pb2.ReplyTiming]:
        message = self._require(response, "verdict").verdict
        try:
            verdict = verdict_from_pb(message, ReplyTiming())
            check_verdict(sequence, proposal, verdict, vocab_size=self._expected.vocab_size)
        except InvalidRequest as error:
            name = self._peer.name
            raise InternalError(f"{name} gave a broken verdict: {error}") from None
        return verdict, message.timing
