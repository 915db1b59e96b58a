"""One request's long-lived stream to an engine elsewhere: messages out, as many answers back.

Carries bytes, so that the caller can time how long values take to be turned into them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from slipstream.core.errors import DeadlineExceeded, InternalError, SlipstreamError, Unavailable
from slipstream.core.round import Clock
from slipstream.core.sequence import Delta, TokenSequence
from slipstream.core.types import Session
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import draft_pb2

# Details of grpc.aio's status for a write that meets the end of its stream. Openings
# are answered before anything else is written, so no refusal is lost like that.
_LOST_STATUS = "Internal error from Core"
MAX_ANSWER_BYTES = 1 << 20
"""Largest answer but a tokenizer: a tree of 127 nodes with distributions has 210,000 at most."""
_TOO_LATE = "the request's deadline has passed"

M = TypeVar("M", bound=Message)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica that can be reached."""

    name: str
    """Name in error messages: target 10.0.0.7:50052."""
    channel: grpc.aio.Channel
    used: Callable[[], AbstractContextManager[object]] = nullcontext
    """Return the context of a use, for counting."""
    lost: Callable[[], Awaitable[str]] | None = None
    """Wait until the replica is lost and return the reason, where its health is watched."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Fence and time limits of one request's calls to a replica.

    `fence` is that of the session's owner. A round may take `round_s`, `token_s` for every token
    that it sends, and `queue_s` once the replica reports that it waits for memory; all rounds
    together may take what `remaining` returns, None being no limit. `owner` stands for the API key.
    """

    fence: int = 0
    round_s: float = 30.0
    token_s: float = 0.01
    remaining: Callable[[], float | None] = lambda: None
    clock: Clock = time.perf_counter
    queue_s: float = 60.0
    owner: str = ""

    def limit_s(self, num_tokens: int) -> float:
        return self.round_s + self.token_s * num_tokens


class Exchange:
    """A bidirectional stream of messages and answers. One user at a time.

    The first message opens it. A round that is cancelled, or takes too long, ends it.
    """

    def __init__(self, peer: Peer, method: str, options: CallOptions) -> None:
        self._peer = peer
        self._method = method
        self._options = options
        self._call: Any = None
        self._is_over = False
        self._timeout: asyncio.Timeout | None = None
        self._given_up = ""

    @property
    def is_open(self) -> bool:
        return self._call is not None

    async def ask(self, *messages: bytes, num_tokens: int = 0) -> bytes:
        """Send messages, which carry so many tokens, and wait for the answer to the first.

        Raises the error that the replica ended the stream with, `Unavailable` when it can't be
        reached, and `DeadlineExceeded` naming it when it does not answer in time.
        """
        if self._is_over:
            raise self._has_ended()
        return await self._within(self._options.limit_s(num_tokens), self._ask(messages))

    async def send(self, message: bytes) -> None:
        """Send a message without an answer of its own; errors of the stream surface on read."""
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.write(message)

    async def more(self, limit_s: float) -> bytes:
        """Wait for another answer, for up to so long. Raises as `ask` does."""
        return await self._within(limit_s, self._read())

    async def finish(self, message: bytes) -> None:
        """Send the last message and wait for its answer and for the stream's end."""
        await self.ask(message)
        self._is_over = True
        await self._within(self._options.limit_s(0), self._end())

    def give_up(self, reason: str) -> None:
        """End the stream now; a call that waits raises `Unavailable` with this reason."""
        self._given_up = reason
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
        else:
            self.cancel()

    def cancel(self) -> None:
        """End the stream now; the other side frees what it holds. May be repeated."""
        self._is_over = True
        if self._call is not None:
            self._call.cancel()

    async def _within(self, limit_s: float, work: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(limit_s) as self._timeout:
                return await work
        except TimeoutError:
            self.cancel()
            if self._given_up:
                raise self._has_ended() from None
            raise DeadlineExceeded(
                f"{self._peer.name} did not answer within {limit_s:g} s"
            ) from None
        except grpc.aio.AioRpcError as error:
            self._is_over = True
            raise self._error(error) from None
        except (SlipstreamError, asyncio.CancelledError):
            self.cancel()
            raise
        except Exception as error:  # any error here comes from the other side
            self.cancel()
            kind = type(error).__name__
            raise InternalError(f"{self._peer.name} is not understood: {kind}") from error
        finally:
            self._timeout = None

    async def _ask(self, messages: Sequence[bytes]) -> bytes:
        if self._call is None:
            self._call = self._opened()
        for message in messages:
            await self.send(message)
        return await self._read()

    async def _read(self) -> bytes:
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            self._is_over = True
            raise self._has_ended()
        return bytes(answer)

    def _error(self, status: grpc.aio.AioRpcError) -> SlipstreamError:
        """Return the error that the status stands for; a peer that can't be reached is named."""
        remaining = self._options.remaining()
        if remaining is not None and remaining <= 0:
            return DeadlineExceeded(_TOO_LATE)
        if status.details() == _LOST_STATUS:
            return self._has_ended()
        error = error_from(status)
        if isinstance(error, Unavailable):
            return Unavailable(f"{self._peer.name} can't be reached: {error}")
        return error

    def _has_ended(self) -> Unavailable:
        how = f"is lost: {self._given_up}" if self._given_up else "has ended the stream"
        return Unavailable(f"{self._peer.name} {how}")

    async def _end(self) -> None:
        await self._call.done_writing()
        while await self._call.read() is not grpc.aio.EOF:
            pass

    def _opened(self) -> Any:
        timeout = self._options.remaining()
        if timeout is not None and timeout <= 0:
            raise DeadlineExceeded(_TOO_LATE)
        open_stream: Any = self._peer.channel.stream_stream(self._method)
        return open_stream(timeout=timeout)


def parsed(kind: type[M], data: bytes, source: str, *, max_bytes: int = MAX_ANSWER_BYTES) -> M:
    """The message; `InternalError` naming `source` where the bytes are none, or too many."""
    if len(data) > max_bytes:
        raise InternalError(
            f"{source} answered a {kind.__name__} of {len(data)} bytes, above {max_bytes}"
        )
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InternalError(f"{source} answered with bytes that are no {kind.__name__}") from None


class RemoteEngine(Generic[M]):
    """An engine behind a stream, which the first call opens. The peer is in use until the end.

    Everything that the stream holds at the other side is freed when it ends, unless the session
    was parked.
    """

    _method: str
    _request: Callable[..., Message]
    _response: type[M]

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

    async def _opened(self, opening: Message) -> M:
        answer = await self._exchange.ask(self._request(open=opening).SerializeToString())
        return self._require(self._parsed(answer), "opened")

    def _parsed(self, answer: bytes) -> M:
        return parsed(self._response, answer, self._peer.name)

    def _require(self, message: M, part: str) -> M:
        got = message.WhichOneof("message")
        if got != part:
            raise InternalError(f"{self._peer.name} answered {got}, but {part} was due")
        return message
