"""Routers: requests out, chunks and typed errors in."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from slipstream.client.call import ClientCall, late
from slipstream.client.connection import Connection, RouterChannel
from slipstream.client.retries import Retries, StreamProgress
from slipstream.core import errors
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.prompt import Prompt, PromptForm
from slipstream.core.request.results import Chunk, Result
from slipstream.core.request.server_info import ServerInfo
from slipstream.rpc.channel import metadata
from slipstream.rpc.conversion.convert import model_info_from_pb
from slipstream.rpc.conversion.convert_common import value_from_pb
from slipstream.rpc.conversion.convert_generation import (
    chunk_from_pb,
    generation_to_pb,
    prompt_to_pb,
    result_from_pb,
)
from slipstream.rpc.status import error_from, is_named
from slipstream.rpc.v1 import generation_pb2 as pb

MAX_CONTROL_S = 30.0
"""Longest time for calls that generate nothing."""
_LOG = logging.getLogger("slipstream.client")
_CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_UNCLEAR = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_CUT_WORDS = ("RST_STREAM", "Stream removed")
_understood = partial(errors.refused_as, "the router's answer can't be read:", errors.InternalError)
"""Blames the router, not the caller, for an answer that can't be read."""


class RemoteBackend:
    """See `Backend`: any router of several. It waits or blocks as its channel does."""

    def __init__(self, to: Connection, timeout_s: float, channel: RouterChannel) -> None:
        self._to = to
        self.address: str | None = to.address
        self._timeout_s = timeout_s
        self._control_s = min(timeout_s, MAX_CONTROL_S)
        self._metadata = metadata(to.options)
        self._channel = channel

    def with_token(self, token: str | None) -> "RemoteBackend":
        return RemoteBackend(self._to.with_token(token), self._timeout_s, self._channel)

    async def generate(self, call: ClientCall) -> Result:
        request = pb.GenerateRequest(generation=generation_to_pb(call.generation))
        headers = call.telemetry.headers
        answer = await self._call("Generate", request, call.timeout_s, headers)
        with _understood():
            return result_from_pb(answer)

    def stream(self, call: ClientCall) -> "_RemoteStream":
        progress = StreamProgress(call, self._to.retries(call.timeout_s))
        return _RemoteStream(self._channel, self._start, progress)

    async def tokenize(self, prompt: Prompt, form: PromptForm, *, model: str) -> tuple[int, ...]:
        request = pb.TokenizeRequest(model=model, prompt=prompt_to_pb(prompt, form))
        return tuple((await self._call("Tokenize", request, self._control_s)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str) -> str:
        request = pb.DetokenizeRequest(model=model, token_ids=token_ids)
        text: str = (await self._call("Detokenize", request, self._control_s)).text
        return text

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        request = pb.GetModelInfoRequest(model=model)
        answer = await self._call("GetModelInfo", request, self._control_s)
        with _understood():
            return tuple(model_info_from_pb(info) for info in answer.models)

    async def server_info(self) -> ServerInfo:
        answer = await self._call("GetServerInfo", pb.GetServerInfoRequest(), self._control_s)
        with _understood():
            return value_from_pb(ServerInfo, answer)

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`. A router that is away forgets it in time by itself."""
        if self._channel.is_closed:
            return
        request = pb.DeleteSessionRequest(session_id=session_id)
        with suppress(errors.SessionNotFound, errors.Unavailable, errors.DeadlineExceeded):
            await self._call("DeleteSession", request, self._control_s)

    async def pause(self, seconds: float) -> None:
        await self._channel.pause(seconds)

    async def aclose(self) -> None:
        await self._channel.aclose()

    def _start(self, call: ClientCall) -> Any:
        return self._channel.start(
            pb.GenerateStreamRequest(generation=generation_to_pb(call.generation)),
            timeout=call.timeout_s,
            metadata=(*self._metadata, *call.telemetry.headers),
        )

    async def _call(
        self,
        method: str,
        request: object,
        timeout_s: float | None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        retries, carried = self._to.retries(timeout_s), (*self._metadata, *headers)
        while True:
            try:
                return await self._channel.call(
                    method, request, timeout=retries.left_s(), metadata=carried
                )
            except grpc.RpcError as error:
                pause_s = _pause_after(error, retries, type(request).__name__)
            await self._channel.pause(pause_s)


@dataclass(eq=False)
class _RemoteStream:
    """See `ChunkSource`: one answer, over as many calls as it takes."""

    _channel: RouterChannel
    _start: Callable[[ClientCall], Any]
    _progress: StreamProgress
    _rpc: Any = None
    _ended: threading.Event = field(default_factory=threading.Event)

    async def start(self) -> Chunk | None:
        """See `ChunkSource.start`: a request has started when something of its answer has come."""
        return await self.read()

    async def read(self) -> Chunk | None:
        chunk = None
        while chunk is None:
            message = await self._message()
            if message is None:
                if not self._progress.is_finished:
                    raise errors.InternalError("the router ended the stream without a reason")
                return None
            with _understood():
                chunk = self._progress.received(chunk_from_pb(message))
        return chunk

    async def aclose(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._ended.set()
        if self._rpc is not None:
            self._rpc.cancel()

    async def _message(self) -> Any:
        progress = self._progress
        while not self._ended.is_set():
            try:
                return await self._next()
            except grpc.RpcError as error:
                if self._ended.is_set():
                    break
                pause_s = _pause_after(error, progress.retries, f"request {progress.request_id}")
            self._rpc = None
            await self._channel.pause(pause_s)
        raise errors.Cancelled("the stream was closed while it was read")

    async def _next(self) -> Any:
        if self._rpc is None:
            self._rpc = self._start(self._progress.next_call())
            if self._ended.is_set():  # by another thread, meanwhile
                self._rpc.cancel()
        return await self._channel.read(self._rpc)


def _pause_after(error: grpc.RpcError, retries: Retries, request: str) -> float:
    """Return the seconds to the next try of what failed so. Raises where there is none."""
    known = error_from(error)
    timeout_s = retries.timeout_s
    if timeout_s is not None and type(known) is errors.DeadlineExceeded and not is_named(error):
        known = late(timeout_s)
    is_sent_again = _is_cut(error) or (
        isinstance(known, errors.SessionTaken) and retries.takes_back()
    )
    pause_s = retries.pause_s() if is_sent_again else None
    if pause_s is None:
        raise known from None
    _LOG.info("%s broke off (%s), and is sent again in %.2f s", request, known, pause_s)
    return pause_s


def _is_cut(error: grpc.RpcError) -> bool:
    status: Any = error
    if status.code() in _CUT:
        return True
    # gRPC has no code of its own for a stream that was reset; neither has what others may mean.
    is_unclear = status.code() in _UNCLEAR and not is_named(error)
    return is_unclear and any(word in (status.details() or "") for word in _CUT_WORDS)
