"""The public API on the wire: unpack, delegate, pack. Errors become statuses in the server."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import slipstream
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.request import Ask, Generation, SessionRef, check_name
from slipstream.core.request.results import Chunk, collected
from slipstream.core.request.server_info import ServerInfo
from slipstream.router.access import Access, Key
from slipstream.router.fields import refuse_too_many, refuse_unknown
from slipstream.router.info import model_info
from slipstream.router.limits import Admission, KeyLimits
from slipstream.router.replicas.fleet import Fleet
from slipstream.router.request_runner import RequestRunner
from slipstream.router.request_telemetry import RequestRecorder, RouterTelemetry
from slipstream.router.shadow import Shadow
from slipstream.rpc.conversion.convert_generation import generation_from_pb, prompt_from_pb
from slipstream.rpc.conversion.convert_info import model_info_to_pb, server_info_to_pb
from slipstream.rpc.conversion.convert_results import chunk_to_pb, result_to_pb
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1 import generation_pb2_grpc
from slipstream.state.store import SessionStore

SERVICE = "slipstream.rpc.v1.GenerationService"
GENERATE, STREAM = f"{SERVICE}/Generate", f"{SERVICE}/GenerateStream"


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that serve the public API."""

    access: Access
    limits: KeyLimits
    fleet: Fleet
    runner: RequestRunner
    store: SessionStore
    admission: Admission
    shadow: Shadow


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """See `generation.proto`."""

    def __init__(
        self,
        parts: Parts,
        telemetry: RouterTelemetry,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._telemetry = telemetry
        self._clock = clock
        self._started = clock()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        """See `generation.proto`."""
        with self._telemetry.request(GENERATE, context.invocation_metadata()) as recorder:
            key = self._enter(request, context, request.generation.prompt)
            asked = generation_from_pb(request.generation)
            recorder.record_request(asked, is_stream=False)
            if asked.num_received:
                raise InvalidRequest("num_received_tokens is given, but Generate answers with all")
            async with aclosing(self._chunks(asked, key, context, recorder)) as chunks:
                return result_to_pb(collected([chunk async for chunk in chunks]))

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        """See `generation.proto`."""
        with self._telemetry.request(STREAM, context.invocation_metadata()) as recorder:
            key = self._enter(request, context, request.generation.prompt)
            asked = generation_from_pb(request.generation)
            recorder.record_request(asked, is_stream=True)
            async with aclosing(self._chunks(asked, key, context, recorder)) as chunks:
                async for chunk in chunks:
                    yield chunk_to_pb(chunk)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """See `generation.proto`."""
        key, parts = self._enter(request, context, request.prompt), self._parts
        prompt, raw = prompt_from_pb(request.prompt)
        ask = Ask(raw=raw, allow_special_tokens=request.prompt.allow_special_tokens)
        asked = Generation(prompt, ask, request.model)
        run = parts.runner.tokens(asked)
        async with aclosing(
            parts.limits.within(key, asked, run, self._remaining(context))
        ) as chunks:
            return pb.TokenizeResponse(token_ids=(await anext(chunks)).token_ids)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Any
    ) -> pb.GetModelInfoResponse:
        """See `generation.proto`."""
        self._enter(request, context)
        check_name("model", request.model)
        fleet = self._parts.fleet
        models = fleet.models()
        names = [fleet.model_name(request.model)] if request.model else sorted(models)
        infos = [model_info_to_pb(model_info(fleet, models[name])) for name in names]
        return pb.GetModelInfoResponse(models=infos)

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Any
    ) -> pb.GetServerInfoResponse:
        """See `generation.proto`."""
        self._enter(request, context)
        parts = self._parts
        info = ServerInfo(
            version=slipstream.__version__,
            protocol_version=PROTOCOL_VERSION,
            uptime_s=self._clock() - self._started,
            num_requests=parts.admission.num_requests,
            num_sessions=await parts.store.count() or 0,
            replicas=parts.fleet.infos(),
            shadow=parts.shadow.info,
        )
        return server_info_to_pb(info)

    async def DeleteSession(
        self, request: pb.DeleteSessionRequest, context: Any
    ) -> pb.DeleteSessionResponse:
        """See `generation.proto`."""
        key = self._enter(request, context)
        await self._parts.runner.forget(SessionRef(request.session_id).session_id, key.name)
        return pb.DeleteSessionResponse()

    def _enter(self, request: Any, context: Any, prompt: pb.Prompt | None = None) -> Key:
        """The caller, whose name owns the sessions that it begins.

        Counts the `prompt` of the request before anything looks at what is in it.
        """
        key = self._parts.access.check(context.invocation_metadata())
        if prompt is not None:
            refuse_too_many(prompt, self._parts.fleet.context_length())
        refuse_unknown(request)
        return key

    async def _chunks(
        self, asked: Generation, key: Key, context: Any, recorder: RequestRecorder
    ) -> AsyncGenerator[Chunk, None]:
        remaining, parts = self._remaining(context), self._parts
        run = parts.runner.chunks(asked, key.name, remaining, recorder)
        async with aclosing(parts.limits.within(key, asked, run, remaining)) as chunks:
            async for chunk in chunks:
                recorder.record_chunk(chunk)
                yield chunk

    def _remaining(self, context: Any) -> Callable[[], float | None]:
        """Seconds until the caller's deadline, also after the call has ended."""
        left = context.time_remaining()
        if left is None:
            return lambda: None
        deadline = self._clock() + left
        return lambda: deadline - self._clock()
