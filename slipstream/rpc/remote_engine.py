"""Common parts of a remote draft and a remote target: one stream of one request of a session."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Generic, TypeVar

from google.protobuf.message import Message

from slipstream.core.errors import InternalError
from slipstream.core.sequence import Delta, TokenSequence
from slipstream.core.types import Session
from slipstream.rpc.exchange import CallOptions, Exchange, Peer, parsed
from slipstream.rpc.v1 import draft_pb2

R = TypeVar("R", bound=Message)


class RemoteEngine(Generic[R]):
    """An engine behind a stream, which the first call opens. The peer is in use until the end.

    Everything that the stream holds at the other side is freed when it ends, unless the session
    was parked.
    """

    _method: str
    _request: Callable[..., Message]
    _response: type[R]

    def __init__(self, peer: Peer, options: CallOptions) -> None:
        self._peer = peer
        self._options = options
        self._exchange = Exchange(peer, self._method, options)
        self._sequence: TokenSequence | None = None
        self._num_sent = 0
        """Leading tokens of the sequence that the other side has."""
        self._use = ExitStack()
        self._use.enter_context(peer.used())

    async def release(self, session_id: str) -> None:
        """End the stream, which frees its session. Again, or before the first call, is fine."""
        self.end()

    def end(self) -> None:
        self._exchange.cancel()
        self._use.close()

    async def park(self, ttl_s: float) -> None:
        """End the stream, but have the session kept for its next turn."""
        if self._exchange.is_open:
            park = draft_pb2.Park(ttl_ms=round(ttl_s * 1000))
            await self._exchange.finish(self._request(park=park).SerializeToString())

    async def open(self, session: Session) -> None:
        """Take the session over. Ending the stream without more frees what was parked."""
        raise NotImplementedError

    def _news(self, sequence: TokenSequence) -> Delta:
        if sequence is not self._sequence:
            self._sequence, self._num_sent = sequence, 0
        return Delta.since(self._num_sent, sequence)

    async def _opened(self, opening: Message) -> R:
        answer = await self._exchange.ask(self._request(open=opening).SerializeToString())
        return self._require(self._parsed(answer), "opened")

    def _parsed(self, answer: bytes) -> R:
        return parsed(self._response, answer, self._peer.name)

    def _require(self, message: R, part: str) -> R:
        got = message.WhichOneof("message")
        if got != part:
            raise InternalError(f"{self._peer.name} answered {got}, but {part} was due")
        return message
