"""Routers, for asyncio: requests out, chunks and typed errors in."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from slipstream.client.connection import (
    MAX_CONTROL_S,
    Connection,
    closed_meanwhile,
    models_from,
    pause_after,
    stream_request,
    tokenize_request,
    unary_request,
    understood,
    unfinished,
)
from slipstream.client.resuming import Resuming
from slipstream.client.surface import Call
from slipstream.core.errors import (
    Cancelled,
    DeadlineExceeded,
    SessionClosed,
    SessionNotFound,
    Unavailable,
)
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, Result
from slipstream.core.server_info import ServerInfo
from slipstream.rpc.channel import connect, metadata
from slipstream.rpc.convert_info import server_info_from_pb
from slipstream.rpc.convert_results import chunk_from_pb, result_from_pb
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceStub

if TYPE_CHECKING:
    from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceAsyncStub


class _Line:
    """A channel, made by the first call; callers with different tokens may share it."""

    def __init__(self, to: Connection) -> None:
        self._to = to
        self._channel: grpc.aio.Channel | None = None
        self.is_closed = False

    def stub(self) -> "GenerationServiceAsyncStub":
        """Raises `SessionClosed` once it is closed."""
        if self.is_closed:
            raise SessionClosed("the client is closed")
        if self._channel is None:  # here, where a loop runs
            self._channel = connect(self._to.target, self._to.options)
        return GenerationServiceStub(self._channel)

    async def aclose(self) -> None:
        """End it, and the calls on it."""
        self.is_closed = True
        if self._channel is not None:
            await self._channel.close()


class AsyncRemote:
    """See `AsyncBackend`. Its channel belongs to the loop of the first call."""

    def __init__(self, to: Connection, timeout_s: float, *, line: _Line | None = None) -> None:
        """`line` is that of another caller of the same routers; by default a new one."""
        self._to = to
        self.address: str | None = to.address
        self._timeout_s = timeout_s
        self._control_s = min(timeout_s, MAX_CONTROL_S)
        self._metadata = metadata(to.options)
        self._line = line or _Line(to)

    def with_token(self, token: str | None) -> "AsyncRemote":
        """See `AsyncBackend.with_token`."""
        return AsyncRemote(self._to.with_token(token), self._timeout_s, line=self._line)

    async def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        answer: pb.GenerateResponse = await self._ask(
            self._line.stub().Generate, unary_request(call), call.timeout_s, call.watch.headers
        )
        with understood():
            return result_from_pb(answer)

    def turn(self, call: Call) -> "_RemoteTurn":
        """See `AsyncBackend.turn`."""
        return _RemoteTurn(self._start, self._to.resuming(call))

    async def tokenize(
        self, prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
    ) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        request = tokenize_request(
            prompt, raw=raw, allow_special_tokens=allow_special_tokens, model=model
        )
        answer = await self._ask(self._line.stub().Tokenize, request, self._control_s)
        return tuple(answer.token_ids)

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        ask, request = self._line.stub().GetModelInfo, pb.GetModelInfoRequest(model=model)
        return models_from(await self._ask(ask, request, self._control_s))

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`."""
        request = pb.GetServerInfoRequest()
        answer = await self._ask(self._line.stub().GetServerInfo, request, self._control_s)
        with understood():
            return server_info_from_pb(answer)

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`. A router that can't be told forgets it in time by itself."""
        if self._line.is_closed:
            return
        request = pb.DeleteSessionRequest(session_id=session_id)
        with suppress(SessionNotFound, Unavailable, DeadlineExceeded):
            await self._ask(self._line.stub().DeleteSession, request, self._control_s)

    async def aclose(self) -> None:
        """See `Backend.close`."""
        await self._line.aclose()

    def _start(self, call: Call) -> Any:
        return self._line.stub().GenerateStream(
            stream_request(call),
            timeout=call.timeout_s,
            metadata=(*self._metadata, *call.watch.headers),
        )

    async def _ask(
        self,
        method: Callable[..., Any],
        request: object,
        timeout_s: float | None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        tries, carried = self._to.tries(timeout_s), (*self._metadata, *headers)
        while True:
            try:
                answer = method(request, timeout=tries.left_s(), metadata=carried)
                return await _uncancelled(answer)
            except grpc.RpcError as error:
                pause_s = pause_after(error, tries, type(request).__name__)
            await asyncio.sleep(pause_s)
            if self._line.is_closed:
                raise closed_meanwhile()


class _RemoteTurn:
    """One stream, begun when its first chunk is asked for, over as many calls as it takes."""

    def __init__(self, start: Callable[[Call], Any], resuming: Resuming) -> None:
        self._start = start
        self._resuming = resuming
        self._rpc: Any = None
        self._is_ended = False

    async def read(self) -> Chunk | None:
        """See `Turn.read`."""
        chunk = None
        while chunk is None:
            message = await self._message()
            if message is grpc.aio.EOF:
                if not self._resuming.is_finished:
                    raise unfinished()
                return None
            with understood():
                chunk = self._resuming.received(chunk_from_pb(message))
        return chunk

    async def aclose(self) -> None:
        """See `Turn.aclose`."""
        self.cancel()

    def cancel(self) -> None:
        """See `Turn.cancel`."""
        self._is_ended = True
        if self._rpc is not None:
            self._rpc.cancel()

    async def _message(self) -> Any:
        """The next one there is, of this call or of one after it."""
        tries = self._resuming.tries
        while not self._is_ended:
            try:
                if self._rpc is None:
                    self._rpc = self._start(self._resuming.next_call())
                return await _uncancelled(self._rpc.read())
            except grpc.RpcError as error:
                pause_s = pause_after(error, tries, f"request {self._resuming.request_id}")
            self._rpc = None
            await asyncio.sleep(pause_s)
        raise Cancelled("the stream was closed while it was read")


async def _uncancelled(answer: Awaitable[Any]) -> Any:
    """A call that ends with its channel is `Cancelled`; tasks are cancelled as ever."""
    try:
        return await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise closed_meanwhile() from None
