"""A target served on this machine, spoken to in bare messages, with its engine in sight."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.core.sequence import Delta
from slipstream.core.types import Proposal, Session
from slipstream.engine.thread import EngineThread
from slipstream.models.causal import CausalModel
from slipstream.models.dtypes import Array
from slipstream.models.kv.cache import view_layout
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.conversion.convert_common import message_of, proposal_to_pb
from slipstream.rpc.kv import KvFormat, KvStreamSource, dtype_of, frame_from_bytes, unpack
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.service_options import SessionOptions
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2, target_pb2_grpc
from slipstream.telemetry.metric import Telemetry
from slipstream.telemetry.spans import Carrier
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.engine import LocalTarget
from slipstream_target.__main__ import layout_to_pb
from slipstream_target.servicer import SERVICE, TargetServicer, register
from support.models import tiny
from support.models.in_memory import causal_model
from support.services.background import serving
from support.services.fleet import eventually

LIMIT_S = 60
IDENTITY = common_pb2.ModelIdentity(
    protocol_version=PROTOCOL_VERSION,
    model_id="tiny",
    tokenizer_hash="a tokenizer",
    vocab_size=tiny.VOCAB,
    incarnation="this process",
)


def wide_model() -> CausalModel:
    """Four layers with the keys and values of a large model: 16 KiB a position."""
    torch.manual_seed(0)
    sizes = {"vocab_size": tiny.VOCAB, "hidden_size": 64, "intermediate_size": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    lengths = {"num_hidden_layers": 4, "max_position_embeddings": 1024}
    config = LlamaConfig(**sizes, **heads, **lengths)
    return causal_model(LlamaForCausalLM(config).to(torch.bfloat16).eval())


@dataclass
class Stream:
    call: Any
    session_id: str
    credential: str

    async def ask(self, **message: Any) -> target_pb2.VerifyResponse:
        await self.call.write(target_pb2.VerifyRequest(**message))
        answer: target_pb2.VerifyResponse = await asyncio.wait_for(self.call.read(), LIMIT_S)
        return answer

    async def verify(
        self,
        start: int,
        tokens: tuple[int, ...],
        proposal: Proposal | None = None,
        trace: Carrier | None = None,
    ) -> target_pb2.Verdict:
        asked = target_pb2.VerifyProposal(
            delta=message_of(common_pb2.Delta, Delta(start, tokens)),
            proposal=proposal_to_pb(proposal or Proposal()),
        )
        return (
            await self.ask(verify=asked, trace=message_of(common_pb2.TraceContext, trace))
        ).verdict

    async def rounds(
        self, tokens: tuple[int, ...], count: int, trace: Carrier | None = None
    ) -> tuple[int, ...]:
        """Tokens after so many plain rounds; all but the last of them are told."""
        start = 0
        for _ in range(count):
            verdict = await self.verify(start, tokens[start:], trace=trace)
            start, tokens = len(tokens), (*tokens, *verdict.tokens)
        return tokens

    async def park(self, ttl_s: float = 60) -> None:
        await self.ask(park=draft_pb2.Park(ttl_ms=round(ttl_s * 1000)))
        await self.end()

    async def end(self) -> None:
        """Half-close, and wait until the other side has ended the stream."""
        await self.call.done_writing()
        await asyncio.wait_for(self.call.code(), LIMIT_S)


@dataclass
class Mirror:
    """The keys and values that a reader holds."""

    form: KvFormat
    source: KvStreamSource
    call: Any
    layers: list[Array]
    count: int = 0
    skipped: range = range(0)
    frames: list[tuple[int, int]] = field(default_factory=list)
    """Start and count of every slice."""

    async def read(self) -> bool:
        """Take one slice; False at the stream's end."""
        message = await asyncio.wait_for(self.call.read(), LIMIT_S)
        if not isinstance(message, target_pb2.StreamKvResponse):
            return False
        frame = frame_from_bytes(message.SerializeToString(), self.source, self.form)
        assert {*range(self.count, frame.start)} <= {*self.skipped}, "a gap"
        self.count = frame.start + frame.count
        for layer, values in zip(self.layers, unpack(frame, self.form), strict=True):
            layer[:, frame.start : self.count] = values
        self.frames.append((frame.start, frame.count))
        return True

    async def read_to(self, count: int) -> None:
        """Take slices until so many positions are held."""
        while self.count < count:
            assert await self.read()


@dataclass
class Served:
    engine: LocalTarget
    channel: grpc.aio.Channel
    servicer: TargetServicer
    address: str = ""

    @property
    def stub(self) -> Any:
        return target_pb2_grpc.TargetServiceStub(self.channel)

    async def open(
        self, session: Session, *, fence: int = 0, expected: common_pb2.ModelIdentity = IDENTITY
    ) -> Stream:
        """A `Verify` stream that has been answered."""
        stream = Stream(self.stub.Verify(), session.session_id, "")
        params = message_of(common_pb2.SessionParams, session, fence=fence)
        opening = target_pb2.OpenTarget(session=params, expected=expected)
        stream.credential = (await stream.ask(open=opening)).opened.kv_credential
        return stream

    def request(
        self, stream: Stream, layers: tuple[int, ...] = (), start: int = 0, **fields: Any
    ) -> target_pb2.StreamKvRequest:
        """Return the message that opens a stream of the keys and values of a session."""
        values = {"protocol_version": PROTOCOL_VERSION, "incarnation": IDENTITY.incarnation}
        names = {"session_id": stream.session_id, "credential": stream.credential}
        given = {"layers": layers, "start": start, **fields}
        return target_pb2.StreamKvRequest(open=target_pb2.OpenKv(**{**values, **names, **given}))

    def mirror(
        self, stream: Stream, layers: tuple[int, ...], start: int = 0, skipped: range = range(0)
    ) -> Mirror:
        """A reader from `start` on, of all but what is skipped."""
        layout = view_layout(self.engine.layout, layers)
        form = KvFormat(layers, layout.num_kv_heads, layout.head_dim, dtype_of(layout.dtype))
        shape = (2 * form.num_kv_heads, 1024, form.head_dim)
        buffers = [np.zeros(shape, layout.dtype) for _ in layers]
        source = KvStreamSource(stream.session_id, IDENTITY.incarnation)
        said = {"skip_from": skipped.start, "skip_to": skipped.stop}
        call = self.stub.StreamKv([self.request(stream, layers, start, **said)])
        return Mirror(form, source, call, buffers, count=start, skipped=skipped)

    def cached(self, stream: Stream, mirror: Mirror) -> list[Array]:
        """Return the values of the engine's cache where the mirror has them."""
        view = self.engine.view(stream.session_id, mirror.form.layers)
        assert view.count == mirror.count
        return [view.layers[at][:, : view.count] for at in mirror.form.layers]

    async def load(self) -> common_pb2.Load:
        answer = await self.stub.GetTargetLoad(target_pb2.GetTargetLoadRequest())
        load: common_pb2.Load = answer.load
        return load

    async def until(self, condition: Callable[[common_pb2.Load], bool]) -> None:
        """Ask until it is so: what is asked is another process, as far as a test goes."""
        await eventually(self.load, condition)

    async def until_empty(self) -> None:
        """Wait until no session and no byte is left."""
        await self.until(is_empty)


def is_empty(load: common_pb2.Load) -> bool:
    return (load.num_sessions, load.num_parked, load.kv_bytes, load.num_kv_streams) == (0,) * 4


@asynccontextmanager
async def served_target(
    model: CausalModel,
    limits: SessionOptions | None = None,
    *,
    max_sessions: int = 64,
    num_pages: int = 64,
    identity: common_pb2.ModelIdentity = IDENTITY,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Served]:
    """A target on a real server. In the end nothing may be left in it but what is parked."""
    engine = tiny.local_target(model, free_rows=16, max_sessions=max_sessions, num_pages=num_pages)
    about = target_pb2.DescribeTargetResponse(
        identity=identity,
        layout=layout_to_pb(model.layout),
        context_length=model.context_length,
        tokenizer=target_pb2.Tokenizer(json=b"{}"),
    )
    target = BatchedTarget(engine, EngineThread("target"))
    servicer = TargetServicer(target, about, limits or SessionOptions(), telemetry)
    try:
        async with (
            serving({SERVICE: register(servicer)}) as address,
            connect(address, ChannelOptions()) as channel,
        ):
            yield Served(engine, channel, servicer, address)
    finally:
        await servicer.close()
        pool = engine.memory.pool
        held = (pool.num_pages - pool.num_free) * pool.layout.bytes_per_page
        assert held == engine.memory.num_cached_bytes
