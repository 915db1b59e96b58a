"""The public API on the wire: unpack, delegate, pack. Errors become statuses in the server."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

import slipstream
from slipstream.core.errors import (
    InvalidRequest,
    NotBuilt,
    PromptTooLong,
    check_fits,
    check_token_ids,
)
from slipstream.core.policy.profile import NGRAM
from slipstream.core.request.model_info import DrafterInfo, ModelInfo, drafter_infos
from slipstream.core.request.prompt import check_num_bytes, check_num_messages
from slipstream.core.request.request import Ask, Generation, SessionRef, check_name
from slipstream.core.request.results import Chunk, collected
from slipstream.core.request.server_info import ServerInfo
from slipstream.core.request.tools import MAX_TOOLS_BYTES
from slipstream.rpc.conversion.convert import model_info_to_pb
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.conversion.convert_generation import (
    chunk_to_pb,
    generation_from_pb,
    prompt_from_pb,
    result_to_pb,
)
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1 import generation_pb2_grpc
from slipstream.state.access import Access, Entry
from slipstream.state.quotas import Quotas
from slipstream.state.store import SessionStore
from slipstream_router.limits import Admission, admitted, num_tokens
from slipstream_router.replicas.fleet import ChosenTarget, Fleet
from slipstream_router.replicas.probes import DescribedDraft
from slipstream_router.request_runner import RequestRunner, RouterCall, Send
from slipstream_router.request_telemetry import RouterTelemetry

SERVICE = "slipstream.rpc.v1.GenerationService"
GENERATE, STREAM = f"{SERVICE}/Generate", f"{SERVICE}/GenerateStream"


@dataclass(eq=False)
class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """See `generation.proto`."""

    access: Access
    quotas: Quotas
    fleet: Fleet
    runner: RequestRunner
    store: SessionStore
    admission: Admission
    telemetry: RouterTelemetry
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._started = self.clock()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        chunks: list[Chunk] = []

        async def keep(chunk: Chunk) -> None:
            chunks.append(chunk)

        await self._run(request, context, keep, is_stream=False)
        return result_to_pb(collected(chunks))

    async def GenerateStream(  # type: ignore[override]  # a coroutine that writes
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> None:
        async def send(chunk: Chunk) -> None:
            await context.write(chunk_to_pb(chunk))

        await self._run(request, context, send, is_stream=True)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        key = self._enter(request, context, request.prompt)
        prompt, form = prompt_from_pb(request.prompt)
        asked = Generation(prompt, Ask(form=form), request.model)
        async with admitted(self.quotas, key, asked, self._remaining(context)) as charge:
            token_ids = await self.runner.token_ids(asked)
            await charge(len(token_ids))
        return pb.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Any
    ) -> pb.DetokenizeResponse:
        self._enter(request, context)
        check_name("model", request.model)
        fleet = self.fleet
        model = fleet.models()[fleet.model_name(request.model)].model
        limit = model.facts.context_length
        if len(request.token_ids) > limit:
            raise PromptTooLong(
                f"{len(request.token_ids)} token ids exceed the context of {limit} tokens"
            )
        check_token_ids("the prompt", request.token_ids, len(model.text.table))
        return pb.DetokenizeResponse(text=model.text.table.decode(request.token_ids))

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Any
    ) -> pb.GetModelInfoResponse:
        self._enter(request, context)
        check_name("model", request.model)
        fleet = self.fleet
        models = fleet.models()
        names = [fleet.model_name(request.model)] if request.model else sorted(models)
        infos = [model_info_to_pb(model_info(fleet, models[name])) for name in names]
        return pb.GetModelInfoResponse(models=infos)

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Any
    ) -> pb.GetServerInfoResponse:
        self._enter(request, context)
        info = ServerInfo(
            version=slipstream.__version__,
            protocol_version=PROTOCOL_VERSION,
            uptime_s=self.clock() - self._started,
            num_requests=self.admission.num_requests,
            num_sessions=await self.store.count() or 0,
            replicas=self.fleet.infos(),
        )
        return message_of(pb.GetServerInfoResponse, info)

    async def DeleteSession(
        self, request: pb.DeleteSessionRequest, context: Any
    ) -> pb.DeleteSessionResponse:
        key = self._enter(request, context)
        await self.runner.forget(SessionRef(request.session_id).session_id, key.name)
        return pb.DeleteSessionResponse()

    def _enter(self, request: Any, context: Any, prompt: pb.Prompt | None = None) -> Entry:
        """The caller, who owns the sessions that it begins. A `prompt` too large is not read."""
        key = self.access.check(context.invocation_metadata())
        if prompt is not None:
            refuse_too_many(prompt, self.fleet.context_length())
        refuse_unknown(request)
        return key

    async def _run(self, request: Any, context: Any, send: Send, *, is_stream: bool) -> None:
        """Run a request within the limits of its key; each chunk is counted before it is sent."""
        method = STREAM if is_stream else GENERATE
        with self.telemetry.request(method, context.invocation_metadata()) as recorder:
            key = self._enter(request, context, request.generation.prompt)
            asked = generation_from_pb(request.generation)
            recorder.record_request(asked, is_stream=is_stream)
            if asked.num_received and not is_stream:
                raise InvalidRequest("num_received_tokens is given, but Generate answers with all")
            if asked.ask.with_rounds and not is_stream:
                raise InvalidRequest("with_rounds is given, but Generate answers without rounds")
            remaining = self._remaining(context)
            async with admitted(self.quotas, key, asked, remaining) as charge:

                async def counted(chunk: Chunk) -> None:
                    await charge(num_tokens(chunk))
                    recorder.record_chunk(chunk)
                    await send(chunk)

                await self.runner.run(RouterCall(asked, key.name, remaining, recorder, counted))

    def _remaining(self, context: Any) -> Callable[[], float | None]:
        """Seconds until the caller's deadline, also after the call has ended."""
        left = context.time_remaining()
        if left is None:
            return lambda: None
        deadline = self.clock() + left
        return lambda: deadline - self.clock()


def model_info(fleet: Fleet, placed: ChosenTarget) -> ModelInfo:
    """One model and what it can be asked for. Drafts that are lost for the moment count."""
    model, description = placed.model, placed.model.description
    return ModelInfo.of(
        model.facts,
        _drafters(fleet.drafts_for(placed)),
        model=model.name,
        tokenizer_hash=model.tokenizer_hash,
        has_chat_template=model.text.has_chat_template,
        numerics=description.numerics,
        dtype=description.dtype,
        num_targets=fleet.num_targets(model.name),
    )


def _drafters(drafts: Sequence[tuple[DescribedDraft, bool]]) -> tuple[DrafterInfo, ...]:
    """One row per kind, counting those that are ready; n-gram lookup is the router's own."""
    elsewhere = [(model, is_ready) for model, is_ready in drafts if model.name != NGRAM.kind]
    rows = drafter_infos([model.facts for model, _ in elsewhere])
    ready = [model.name for model, is_ready in elsewhere if is_ready]
    counted = [replace(row, num_replicas=ready.count(row.kind)) for row in rows]
    return tuple(sorted([*counted, *drafter_infos([NGRAM])], key=lambda row: row.kind))


def refuse_too_many(prompt: pb.Prompt, context_length: int) -> None:
    """Raise `InvalidRequest` for more messages, ids or bytes than fit, before any is read."""
    check_num_messages(len(prompt.chat.messages))
    num_tokens = len(prompt.token_ids.ids)
    if num_tokens > context_length:
        raise PromptTooLong(
            f"a prompt of {num_tokens} tokens exceeds the context of {context_length} tokens"
        )
    check_num_bytes(prompt.ByteSize(), context_length)
    num_bytes = sum(tool.ByteSize() for tool in prompt.tools)
    check_fits("tools has", num_bytes, "bytes", MAX_TOOLS_BYTES)


def refuse_unknown(message: Message) -> None:
    """Raises `NotBuilt` naming the first field of the message, or within, that is unknown."""
    unknown: Any = UnknownFieldSet(message)
    if len(unknown):
        number, name = unknown[0].field_number, message.DESCRIPTOR.name
        raise NotBuilt(f"field {number} of {name} is not known to this version")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for part in (value,) if isinstance(value, Message) else value:
            refuse_unknown(part)
