"""A router, for asyncio: requests out, chunks and typed errors in."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc.aio

from slipstream.client.connection import (
    MAX_CONTROL_S,
    Connection,
    models_from,
    stream_request,
    tokenize_request,
    translated,
    unary_request,
    understood,
    unfinished,
)
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


class AsyncRemote:
    """See `AsyncBackend`. Its channel belongs to the loop of the first call."""

    def __init__(self, to: Connection, timeout_s: float) -> None:
        self._to = to
        self._control_s = min(timeout_s, MAX_CONTROL_S)
        self._metadata = metadata(to.options)
        self._channel: grpc.aio.Channel | None = None
        self._is_closed = False

    async def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        request, timeout_s = unary_request(call), call.timeout_s
        answer: pb.GenerateResponse = await self._ask(self._stub().Generate, request, timeout_s)
        with understood():
            return result_from_pb(answer)

    def turn(self, call: Call) -> "_RemoteTurn":
        """See `AsyncBackend.turn`."""
        return _RemoteTurn(lambda: self._start(call), call.timeout_s)

    async def tokenize(self, prompt: Prompt, *, raw: bool, model: str) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        request = tokenize_request(prompt, raw=raw, model=model)
        answer = await self._ask(self._stub().Tokenize, request, self._control_s)
        return tuple(answer.token_ids)

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        request = pb.GetModelInfoRequest(model=model)
        return models_from(await self._ask(self._stub().GetModelInfo, request, self._control_s))

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`."""
        request = pb.GetServerInfoRequest()
        answer = await self._ask(self._stub().GetServerInfo, request, self._control_s)
        with understood():
            return server_info_from_pb(answer)

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`. A router that can't be told forgets it in time by itself."""
        if self._is_closed:
            return
        request = pb.DeleteSessionRequest(session_id=session_id)
        with suppress(SessionNotFound, Unavailable, DeadlineExceeded):
            await self._ask(self._stub().DeleteSession, request, self._control_s)

    async def aclose(self) -> None:
        """See `Backend.close`."""
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close()

    def _stub(self) -> "GenerationServiceAsyncStub":
        if self._is_closed:
            raise SessionClosed("the client is closed")
        if self._channel is None:  # here, where a loop runs
            self._channel = connect(self._to.address, self._to.options)
        return GenerationServiceStub(self._channel)

    def _start(self, call: Call) -> Any:
        return self._stub().GenerateStream(
            stream_request(call), timeout=call.timeout_s, metadata=self._metadata
        )

    async def _ask(
        self, method: Callable[..., Any], request: object, timeout_s: float | None
    ) -> Any:
        with translated(timeout_s), _uncancelled():
            return await method(request, timeout=timeout_s, metadata=self._metadata)


class _RemoteTurn:
    """One call, made when its first chunk is asked for."""

    def __init__(self, start: Callable[[], Any], timeout_s: float | None) -> None:
        self._start = start
        self._timeout_s = timeout_s
        self._rpc: Any = None
        self._is_finished = False

    async def read(self) -> Chunk | None:
        """See `Turn.read`."""
        with translated(self._timeout_s), _uncancelled():
            if self._rpc is None:
                self._rpc = self._start()
            message = await self._rpc.read()
        if message is grpc.aio.EOF:
            if not self._is_finished:
                raise unfinished()
            return None
        with understood():
            chunk = chunk_from_pb(message)
        self._is_finished = chunk.finish_reason is not None
        return chunk

    async def aclose(self) -> None:
        """See `Turn.aclose`."""
        self.cancel()

    def cancel(self) -> None:
        """See `Turn.cancel`."""
        if self._rpc is not None:
            self._rpc.cancel()


@contextmanager
def _uncancelled() -> Iterator[None]:
    """A call that ends with its channel is `Cancelled`; tasks are cancelled as ever."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Cancelled("the client was closed while the request ran") from None
