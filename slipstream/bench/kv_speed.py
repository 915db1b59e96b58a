"""Speed of a target's stream of keys and values, and the rounds of a session beside it."""

import asyncio
import time
from dataclasses import replace
from statistics import median
from typing import Any

import grpc.aio
from rich.table import Table

from slipstream.bench.figures import ByName, fixed, number, table_of
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, ReplyTiming, Session
from slipstream.drafting.kv_mirror import KvMirror
from slipstream.models.dtypes import CPU
from slipstream.models.kv.cache import view_layout
from slipstream.models.kv.pool import KvLayout
from slipstream.rpc import kv
from slipstream.rpc.channel import ChannelOptions, call_unary, connect
from slipstream.rpc.conversion.convert_common import value_from_pb
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.tensors import element_type, unpack
from slipstream.rpc.v1 import draft_pb2, target_pb2

ALONE = "rounds alone"
_SERVICE = "/slipstream.rpc.v1.TargetService"
_KV_REPEATS = 3
_KV_TOKENS = 2048
"""Largest number of positions of a streamed text."""


async def kv_figures(address: str, *, seconds: float = 1.0) -> ByName:
    """Return the speed of a target's stream of keys and values, of all its layers, by encoding:
    MB/s alone and beside a session that verifies without a pause, and the median milliseconds of
    that session's rounds in the target; those without a stream under `ALONE`.

    Medians of runs in turn, each of `seconds`; the reader is this process.
    """
    kv.keep_freed_memory()
    async with connect(address, ChannelOptions()) as channel:
        method, request = f"{_SERVICE}/DescribeTarget", target_pb2.DescribeTargetRequest()
        about = await call_unary(channel, method, request, target_pb2.DescribeTargetResponse)
        stream, samples = _KvStream(channel, about, seconds), {ALONE: list[dict[str, float]]()}
        await stream.target.verify(stream.sequence, Proposal())
        for _ in range(_KV_REPEATS):
            samples[ALONE].append({"round_ms": await stream.round_ms()})
            for encoding in kv.KvEncoding:
                alone = await stream.mb_per_s(encoding)
                both = await asyncio.gather(stream.mb_per_s(encoding), stream.round_ms())
                sample = {"mb_per_s": alone, "beside_mb_per_s": both[0], "round_ms": both[1]}
                samples.setdefault(encoding, []).append(sample)
        stream.target.end()
    return {
        name: {key: median(one[key] for one in of) for key in of[0]} for name, of in samples.items()
    }


class _KvStream:
    """A long text in a target, whose keys and values are read again and again."""

    def __init__(
        self, channel: grpc.aio.Channel, about: target_pb2.DescribeTargetResponse, seconds: float
    ) -> None:
        self._channel, self._about, self._seconds = channel, about, seconds
        self.target, self._most = self._remote(), min(_KV_TOKENS, about.context_length // 2)
        self.sequence = self._text("kv", self._most)
        dtype = kv.DTYPE.from_pb(about.layout.dtype, may_be_none=False)
        assert dtype is not None
        whole = value_from_pb(KvLayout, about.layout, dtype=element_type(dtype), device=CPU)
        layers = tuple(range(whole.num_layers))
        self._layout = view_layout(whole, layers)
        self._form = kv.KvFormat(layers, whole.num_kv_heads, whole.head_dim, dtype)

    def _remote(self) -> RemoteTarget:
        return RemoteTarget(Peer("the target", self._channel), self._about.identity, CallOptions())

    def _text(self, session_id: str, length: int) -> TokenSequence:
        tokens = (number % self._about.identity.vocab_size for number in range(length))
        return TokenSequence(Session(session_id, length, self._most), tokens)

    async def round_ms(self) -> float:
        """Return the median time of plain rounds in the target, each of one token."""
        target, times, until = self._remote(), list[float](), time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            sequence = self._text("rounds", self._most // 4)
            for _ in range(self._most // 4):  # then from the start, so that rounds stay alike
                verdict = await target.verify(sequence, Proposal())
                sequence.append(verdict.tokens)
                times.append(1000 * (verdict.timing or ReplyTiming()).service_s)
        target.end()
        return median(times)

    async def mb_per_s(self, encoding: kv.KvEncoding) -> float:
        """Return the speed of whole snapshots, each into memory of its own."""
        form = replace(self._form, encoding=encoding)
        num_read, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < self._seconds:
            await self._read(form)
            num_read += len(self.sequence)
        return num_read * form.bytes_per_position / elapsed / 1e6

    async def _read(self, form: kv.KvFormat) -> None:
        feed = self.target.feed("") or draft_pb2.KvFeed()
        source = kv.KvStreamSource(feed.session_id, feed.incarnation)
        request = kv.stream_request(source, feed.credential, form)
        mirror = KvMirror(form.layers, self._layout, limit=self._most)
        mirror.reserve(self._most)
        method: Any = self._channel.unary_stream(f"{_SERVICE}/StreamKv")
        call = method(request.SerializeToString())
        while mirror.count < self._most:
            frame = kv.frame_from_bytes(await call.read(), source, form)
            mirror.write(frame.start, unpack(frame, form))
        call.cancel()


def kv_table(figures: ByName) -> Table:
    """Return the speed of the stream by encoding, and what it costs the rounds beside it."""
    columns = {
        "MB/s": lambda of: fixed(of.get("mb_per_s"), 0),
        "MB/s beside rounds": lambda of: fixed(of.get("beside_mb_per_s"), 0),
        "ms per round": number("round_ms", 2),
        "of those alone": lambda of: fixed(of["round_ms"] / figures[ALONE]["round_ms"], 2, "x"),
    }
    return table_of(["keys and values"], columns, (([name], of) for name, of in figures.items()))
