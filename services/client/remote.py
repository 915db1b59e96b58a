"""A router, for threads: requests out, chunks and typed errors in."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

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
        self._control_s = min(timeout_s, MAX_CONTROL_S)
        self._metadata = metadata(to.options)
        self._channel = connect_sync(to.address, to.options)
        self._stub = GenerationServiceStub(self._channel)
        self._is_closed = False

    def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        answer: pb.GenerateResponse = self._ask(
            self._stub.Generate, unary_request(call), call.timeout_s
        )
        with understood():
            return result_from_pb(answer)

    def stream(self, call: Call) -> ChunkStream:
        """See `Backend.stream`. Returns with the first chunk at hand."""
        self._require_open()
        with translated(call.timeout_s):
            rpc = self._stub.GenerateStream(
                stream_request(call), timeout=call.timeout_s, metadata=self._metadata
            )
        chunks = _chunks(rpc, call.timeout_s)
        try:
            first = next(chunks)
        except BaseException:
            rpc.cancel()
            raise
        return ChunkStream(chain([first], chunks), rpc.cancel, request_id=call.request_id)

    def tokenize(self, prompt: Prompt, *, raw: bool, model: str) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        request = tokenize_request(prompt, raw=raw, model=model)
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
        if self._is_closed:
            return
        request = pb.DeleteSessionRequest(session_id=session_id)
        with suppress(SessionNotFound, Unavailable, DeadlineExceeded):
            self._ask(self._stub.DeleteSession, request, self._control_s)

    def close(self) -> None:
        """See `Backend.close`."""
        self._is_closed = True
        self._channel.close()

    def _ask(self, method: Callable[..., Any], request: object, timeout_s: float | None) -> Any:
        self._require_open()
        with translated(timeout_s):
            return method(request, timeout=timeout_s, metadata=self._metadata)

    def _require_open(self) -> None:
        if self._is_closed:
            raise SessionClosed("the client is closed")


def _chunks(rpc: Iterator[pb.GenerateStreamResponse], timeout_s: float | None) -> Iterator[Chunk]:
    is_finished = False
    with translated(timeout_s):
        for message in rpc:
            with understood():
                chunk = chunk_from_pb(message)
            yield chunk
            is_finished = chunk.finish_reason is not None
    if not is_finished:
        raise unfinished()
