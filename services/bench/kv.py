"""How fast keys and values stream from a target in another process, and whom that keeps waiting.

A reader takes whole snapshots over and over, while another session verifies on the same engine
thread; each is measured alone, too. Prints nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from slipstream.bench.kv_server import VOCAB_SIZE
from slipstream.core.errors import InternalError, InvalidRequest
from slipstream.core.types import Delta, Proposal, Session
from slipstream.local.child import start_child
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.exchange import Peer, Terms
from slipstream.rpc.kv import (
    DTYPE,
    ENCODING,
    KvDtype,
    KvEncoding,
    KvFormat,
    KvSource,
    frame_from_pb,
)
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.tensors import torch_dtype, unpack
from slipstream.rpc.v1 import target_pb2, target_pb2_grpc

SERVER = "slipstream.bench.kv_server"
_PREFILL_LIMIT_S = 120.0
_ROUND_TOKENS = 16
_ROUNDS_BEFORE_A_RESTART = 2000
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class KvPlan:
    """What is streamed, in the shape of one Llama-3-8B layer times `layers`, and for how long."""

    seconds: float = 10.0
    layers: int = 4
    positions: int = 4096
    kv_heads: int = 8
    head_dim: int = 128
    encoding: KvEncoding = KvEncoding.RAW

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 600:
            raise InvalidRequest(f"seconds is {self.seconds:g}, but must be above 0, up to 600")
        for name in ("layers", "positions", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be at least 1")

    @property
    def snapshot_bytes(self) -> int:
        """Keys and values of one snapshot, as the cache has them."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.positions * 2


@dataclass(frozen=True, slots=True)
class StreamSpeed:
    """Snapshots taken one after the other. `cache_bytes` count elements as the cache has them."""

    seconds: float
    num_snapshots: float
    cache_bytes: int
    payload_bytes: int

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) of the cache's own keys and values in a second."""
        return self.cache_bytes / self.seconds / 1e6


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Rounds of another session, in seconds: in all, and how long they waited for the engine."""

    num_rounds: int
    median_s: float
    p99_s: float
    max_s: float
    median_queue_s: float
    max_queue_s: float
    median_engine_s: float


@dataclass(frozen=True, slots=True)
class KvReport:
    """Streaming and rounds, each alone and both together."""

    stream_alone: StreamSpeed
    rounds_alone: RoundTimes
    stream_beside: StreamSpeed
    rounds_beside: RoundTimes


async def measure_kv(plan: KvPlan, *, advance: Callable[[str], None]) -> KvReport:
    """Start the target, measure for `plan.seconds` three times, end it."""
    async with _served(plan) as bench:
        advance("stream alone")
        stream_alone = await bench.stream(plan.seconds)
        advance("rounds alone")
        rounds_alone = await bench.rounds(plan.seconds)
        advance("both")
        stream_beside, rounds_beside = await asyncio.gather(
            bench.stream(plan.seconds), bench.rounds(plan.seconds)
        )
    return KvReport(stream_alone, rounds_alone, stream_beside, rounds_beside)


@asynccontextmanager
async def _served(plan: KvPlan) -> AsyncIterator["_Bench"]:
    shape = [str(n) for n in (plan.layers, plan.kv_heads, plan.head_dim, plan.positions)]
    child = await start_child("target", SERVER, shape, say=_drop)
    try:
        address = await child.ready()
        async with (
            connect(address, ChannelOptions()) as channel,
            connect(address, ChannelOptions()) as readers,
        ):
            bench = _Bench(plan, address, channel, readers)
            await bench.prefill()
            yield bench
    finally:
        await child.stop(_GRACE_S)


class _Bench:
    """A session whose snapshots are taken, and the means to take them."""

    def __init__(self, plan: KvPlan, address: str, channel: Any, readers: Any) -> None:
        self._plan = plan
        self._address = address
        self._peer = Peer(f"target {address}", channel)
        self._channel = channel
        self._stub: Any = target_pb2_grpc.TargetServiceStub(readers)
        self._form = KvFormat(
            tuple(range(plan.layers)),
            plan.kv_heads,
            plan.head_dim,
            KvDtype.BFLOAT16,
            plan.encoding,
        )
        self._num_others = 0
        shape = (2 * plan.kv_heads, plan.positions, plan.head_dim)
        dtype = torch_dtype(self._form.dtype)
        self._mirror = [torch.zeros(shape, dtype=dtype) for _ in range(plan.layers)]

    async def prefill(self) -> None:
        """Have the target hold the session, and check what it is."""
        describe: Any = target_pb2_grpc.TargetServiceStub(self._channel).DescribeTarget
        about = await describe(target_pb2.DescribeTargetRequest())
        if DTYPE.from_pb(about.layout.dtype) is not self._form.dtype:
            raise InternalError("the target's keys and values are not of bfloat16")
        self._identity = about.identity
        self._held = RemoteTarget(self._peer, about.identity, Terms(round_s=_PREFILL_LIMIT_S))
        session = Session("held", self._plan.positions, 1)
        await self._held.verify(session, Delta(0, _tokens(self._plan.positions)), Proposal())

    async def stream(self, seconds: float) -> StreamSpeed:
        """Take snapshots for so long; the last one may be a part."""
        feed = self._held.feed(self._address)
        assert feed is not None
        request = target_pb2.StreamKvRequest(
            protocol_version=PROTOCOL_VERSION,
            session_id=feed.session_id,
            incarnation=feed.incarnation,
            credential=feed.credential,
            layers=self._form.layers,
            encoding=ENCODING.to_pb(self._form.encoding),  # type: ignore[arg-type]
        )
        source = KvSource(feed.session_id, feed.incarnation)
        began, positions, payload = time.perf_counter(), 0, 0
        while (spent := time.perf_counter() - began) < seconds:
            taken = await self._snapshot(request, source, until=began + seconds)
            positions, payload = positions + taken[0], payload + taken[1]
        snapshots = positions / self._plan.positions
        num_bytes = round(snapshots * self._plan.snapshot_bytes)
        return StreamSpeed(spent, snapshots, num_bytes, payload)

    async def _snapshot(
        self, request: target_pb2.StreamKvRequest, source: KvSource, *, until: float
    ) -> tuple[int, int]:
        """Positions and bytes of payload that arrived."""
        call = self._stub.StreamKv(request)
        held = payload = 0
        try:
            while held < self._plan.positions and time.perf_counter() < until:
                frame = frame_from_pb(await call.read(), source, self._form)
                unpack(frame, self._form, self._mirror)
                held, payload = frame.start + frame.count, payload + len(frame.payload)
        finally:
            call.cancel()
        return held, payload

    async def rounds(self, seconds: float) -> RoundTimes:
        """Plain rounds of another session, one after the other, for so long."""
        target = RemoteTarget(self._peer, self._identity, Terms())
        self._num_others += 1
        name = f"other {self._num_others}"
        session = Session(name, _ROUND_TOKENS, _ROUNDS_BEFORE_A_RESTART)
        samples: list[tuple[float, float, float]] = []
        news = Delta(0, _tokens(_ROUND_TOKENS))
        end = time.perf_counter() + seconds
        try:
            while (began := time.perf_counter()) < end:
                verdict = await target.verify(session, news, Proposal())
                assert verdict.timing is not None
                total = time.perf_counter() - began
                samples.append((total, verdict.timing.queue_s, verdict.timing.engine_s))
                news = Delta(news.end, verdict.tokens)
                if verdict.finish_reason is not None:
                    news = Delta(0, _tokens(_ROUND_TOKENS))
        finally:
            await target.release(session.session_id)
        return _times(samples)


def _times(samples: Sequence[tuple[float, float, float]]) -> RoundTimes:
    totals, queues, engines = (sorted(column) for column in zip(*samples, strict=True))
    return RoundTimes(
        num_rounds=len(samples),
        median_s=median(totals),
        p99_s=totals[min(len(totals) - 1, len(totals) * 99 // 100)],
        max_s=totals[-1],
        median_queue_s=median(queues),
        max_queue_s=queues[-1],
        median_engine_s=median(engines),
    )


def _tokens(count: int) -> tuple[int, ...]:
    return tuple(1 + at % (VOCAB_SIZE - 1) for at in range(count))


def _drop(name: str, line: str) -> None:
    """What the target logs is not what is measured."""
