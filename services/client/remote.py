"""Routers, for threads: requests out, chunks and typed errors in."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import grpc

from slipstream.client.connection import (
    MAX_CONTROL_S,
    Connection,
    closed_meanwhile,
    error_of,
    models_from,
    pause_after,
    stream_request,
    tokenize_request,
    unary_request,
    understood,
    unfinished,
)
from slipstream.client.resuming import Resuming
from slipstream.client.stream import ChunkStream
from slipstream.client.surface import Call
from slipstream.core.errors import DeadlineExceeded, SessionClosed, SessionNotFound, Unavailable
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, Result
from slipstream.core.server_info import ServerInfo
from slipstream.rpc.channel import connect_sync, metadata
from slipstream.rpc.convert_info import server_info_from_pb
from slipstream.rpc.convert_results import chunk_from_pb, result_from_pb
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceStub


class Remote:
    """See `Backend`. Safe to share between threads."""

    def __init__(self, to: Connection, timeout_s: float) -> None:
        self._to = to
        self.address: str | None = to.address
        self._control_s = min(timeout_s, MAX_CONTROL_S)
        self._metadata = metadata(to.options)
        self._channel = connect_sync(to.target, to.options)
        self._stub = GenerationServiceStub(self._channel)
        self._closed = threading.Event()

    def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        answer: pb.GenerateResponse = self._ask(
            self._stub.Generate, unary_request(call), call.timeout_s, call.watch.headers
        )
        with understood():
            return result_from_pb(answer)

    def stream(self, call: Call) -> ChunkStream:
        """See `Backend.stream`. Returns with the first chunk at hand."""
        self._require_open()
        answer = _Answer(self._start, self._to.resuming(call), self._closed)
        try:
            first = next(answer)
        except BaseException:
            answer.end()
            raise
        return ChunkStream(answer, answer.end, request_id=call.request_id, first=first)

    def tokenize(
        self, prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
    ) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        request = tokenize_request(
            prompt, raw=raw, allow_special_tokens=allow_special_tokens, model=model
        )
        return tuple(self._ask(self._stub.Tokenize, request, self._control_s).token_ids)

    def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        request = pb.GetModelInfoRequest(model=model)
        return models_from(self._ask(self._stub.GetModelInfo, request, self._control_s))

    def server_info(self) -> ServerInfo:
        """See `Backend.server_info`."""
        request = pb.GetServerInfoRequest()
        answer = self._ask(self._stub.GetServerInfo, request, self._control_s)
        with understood():
            return server_info_from_pb(answer)

    def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`. A router that can't be told forgets it in time by itself."""
        if self._closed.is_set():
            return
        request = pb.DeleteSessionRequest(session_id=session_id)
        with suppress(SessionNotFound, Unavailable, DeadlineExceeded):
            self._ask(self._stub.DeleteSession, request, self._control_s)

    def close(self) -> None:
        """See `Backend.close`."""
        self._closed.set()
        self._channel.close()

    def _start(self, call: Call) -> Any:
        return self._stub.GenerateStream(
            stream_request(call),
            timeout=call.timeout_s,
            metadata=(*self._metadata, *call.watch.headers),
        )

    def _ask(
        self,
        method: Callable[..., Any],
        request: object,
        timeout_s: float | None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        self._require_open()
        tries, carried = self._to.tries(timeout_s), (*self._metadata, *headers)
        while True:
            try:
                return method(request, timeout=tries.left_s(), metadata=carried)
            except grpc.RpcError as error:
                if self._closed.is_set():
                    raise closed_meanwhile() from None
                pause_s = pause_after(error, tries, type(request).__name__)
            _pause(pause_s, self._closed)

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise SessionClosed("the client is closed")


class _Answer:
    """The chunks of one stream, whatever becomes of the calls that bring them."""

    def __init__(
        self, start: Callable[[Call], Any], resuming: Resuming, closed: threading.Event
    ) -> None:
        self._start = start
        self._resuming = resuming
        self._closed = closed
        self._rpc: Any = None
        self._is_ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        chunk = None
        while chunk is None:
            message = self._message()
            with understood():
                chunk = self._resuming.received(chunk_from_pb(message))
        return chunk

    def end(self) -> None:
        """Cancel the call that runs, and begin no other."""
        self._is_ended = True
        if self._rpc is not None:
            self._rpc.cancel()

    def _message(self) -> pb.GenerateStreamResponse:
        """The next one there is, of this call or of one after it."""
        tries = self._resuming.tries
        while True:
            try:
                return self._read()
            except StopIteration:
                if self._resuming.is_finished:
                    raise
                raise unfinished() from None
            except grpc.RpcError as error:
                if self._closed.is_set():
                    raise closed_meanwhile() from None
                if self._is_ended:
                    raise error_of(error, tries.timeout_s) from None
                pause_s = pause_after(error, tries, f"request {self._resuming.request_id}")
            self._rpc = None
            _pause(pause_s, self._closed)

    def _read(self) -> pb.GenerateStreamResponse:
        if self._rpc is None:
            self._rpc = self._start(self._resuming.next_call())
            if self._is_ended:  # by another thread, during the pause
                self._rpc.cancel()
        message: pb.GenerateStreamResponse = next(self._rpc)
        return message


def _pause(pause_s: float, closed: threading.Event) -> None:
    """Wait. Raises `Cancelled` once the client is closed."""
    if closed.wait(pause_s):
        raise closed_meanwhile()
