"""One request's long-lived stream to an engine elsewhere: messages out, as many answers back.

Carries bytes, so that turning values into them can be timed by whoever does it. Knows nothing of
what they say.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from slipstream.core.errors import DeadlineExceeded, InternalError, SlipstreamError, Unavailable
from slipstream.core.timing import Clock
from slipstream.rpc.status import error_from

# What grpc.aio says, in place of the status, of a write that meets the end of its stream. Openings
# are answered before anything else is written, so no refusal is lost like that.
_LOST_STATUS = "Internal error from Core"
MAX_ANSWER_BYTES = 1 << 20
"""Of any answer but a tokenizer: a tree of 127 nodes with its laws has 210,000 at most."""
_TOO_LATE = "the request's deadline has passed"

M = TypeVar("M", bound=Message)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica that can be reached. `name` is what errors call it: target 10.0.0.7:50052."""

    name: str
    channel: grpc.aio.Channel


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms one request uses a replica.

    `fence` is that of the session's owner. A round may take `round_s` and `token_s` more for every
    token that it tells, and `queue_s` more once the replica says that it waits for memory; all of
    them together what `remaining` says, None being no limit.
    """

    fence: int = 0
    round_s: float = 30.0
    token_s: float = 0.01
    remaining: Callable[[], float | None] = lambda: None
    clock: Clock = time.perf_counter
    queue_s: float = 60.0

    def limit_s(self, num_tokens: int) -> float:
        """How long a round that tells so many tokens may take."""
        return self.round_s + self.token_s * num_tokens


class Exchange:
    """A bidirectional stream on which every message has one answer. One user at a time.

    The first message opens it. A round that is cancelled, or takes too long, ends it.
    """

    def __init__(self, peer: Peer, method: str, terms: Terms) -> None:
        self._peer = peer
        self._method = method
        self._terms = terms
        self._call: Any = None
        self._is_over = False
        self._patience: asyncio.Timeout | None = None
        self._given_up = ""

    @property
    def is_open(self) -> bool:
        """Whether anything was sent."""
        return self._call is not None

    async def ask(self, message: bytes, *, num_tokens: int = 0) -> bytes:
        """Send a message, which tells so many tokens, and wait for its answer.

        Raises the error that the replica ended the stream with, `Unavailable` when it can't be
        reached, and `DeadlineExceeded` naming it when it does not answer in time.
        """
        if self._is_over:
            raise self._has_ended()
        return await self._within(self._terms.limit_s(num_tokens), self._ask(message))

    async def more(self, limit_s: float) -> bytes:
        """Wait for another answer to the last message, for so long. Raises as `ask` does."""
        return await self._within(limit_s, self._read())

    async def finish(self, message: bytes) -> None:
        """Send the last message and wait for its answer and for the stream's end."""
        await self.ask(message)
        self._is_over = True
        await self._within(self._terms.limit_s(0), self._end())

    def give_up(self, reason: str) -> None:
        """End the stream now; whoever waits for an answer gets `Unavailable` with this reason."""
        self._given_up = reason
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())
        else:
            self.cancel()

    def cancel(self) -> None:
        """End the stream now; the other side frees what it holds. Again is fine."""
        self._is_over = True
        if self._call is not None:
            self._call.cancel()

    async def _within(self, limit_s: float, work: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(limit_s) as self._patience:
                return await work
        except TimeoutError:
            self.cancel()
            raise self._too_late(limit_s) from None
        except grpc.aio.AioRpcError as error:
            self._is_over = True
            raise self._error(error) from None
        except (SlipstreamError, asyncio.CancelledError):
            self.cancel()
            raise
        except Exception as error:  # whatever it is, it comes from the other side
            self.cancel()
            kind = type(error).__name__
            raise InternalError(f"{self._peer.name} is not understood: {kind}") from error
        finally:
            self._patience = None

    def _too_late(self, limit_s: float) -> SlipstreamError:
        if self._given_up:
            return Unavailable(f"{self._peer.name} is lost: {self._given_up}")
        return DeadlineExceeded(f"{self._peer.name} did not answer within {limit_s:g} s")

    async def _ask(self, message: bytes) -> bytes:
        if self._call is None:
            self._call = self._opened()
        with suppress(asyncio.InvalidStateError):  # the stream has ended, and reading says why
            await self._call.write(message)
        return await self._read()

    async def _read(self) -> bytes:
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            self._is_over = True
            raise self._has_ended()
        return bytes(answer)

    def _error(self, status: grpc.aio.AioRpcError) -> SlipstreamError:
        """The error the status stands for; who can't be reached is named."""
        remaining = self._terms.remaining()
        if remaining is not None and remaining <= 0:
            return DeadlineExceeded(_TOO_LATE)
        if status.details() == _LOST_STATUS:
            return self._has_ended()
        error = error_from(status)
        if isinstance(error, Unavailable):
            return Unavailable(f"{self._peer.name} can't be reached: {error}")
        return error

    def _has_ended(self) -> Unavailable:
        if self._given_up:
            return Unavailable(f"{self._peer.name} is lost: {self._given_up}")
        return Unavailable(f"{self._peer.name} has ended the stream")

    async def _end(self) -> None:
        await self._call.done_writing()
        await self._call.read()

    def _opened(self) -> Any:
        timeout = self._terms.remaining()
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
