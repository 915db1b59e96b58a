"""`python tests/kv_speed.py HOST:PORT`: megabytes a second of a target's keys and values of 2,048
tokens, read again and again, alone and beside a session that verifies without a pause; medians of
three runs of a second each, in turn."""

import asyncio
import sys
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from statistics import median

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.models.dtypes import CPU
from slipstream.models.kv.pool import KvLayout
from slipstream.rpc import kv
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.conversion.convert_common import value_from_pb
from slipstream.rpc.exchange import CallOptions, Peer
from slipstream.rpc.kv import element_type, unpack
from slipstream.rpc.remote_target import RemoteTarget
from slipstream.rpc.v1 import target_pb2, target_pb2_grpc

METHOD = "/slipstream.rpc.v1.TargetService/StreamKv"
NUM_TOKENS, SECONDS, REPEATS = 2048, 1.0, 3


def until():
    return time.perf_counter() + SECONDS


def text(name, length):
    return TokenSequence(
        Session(name, length, NUM_TOKENS), [token % 1000 for token in range(length)]
    )


async def round_ms(target, end_s):
    """The median time in the target of plain rounds behind 512 tokens and more."""
    times = []
    while time.perf_counter() < end_s:
        sequence = text("rounds", 512)
        for _ in range(512):
            verdict = await target.verify(sequence, Proposal())
            sequence.append(verdict.tokens)
            times.append(1000 * verdict.timing.service_s)
    return median(times)


async def mb_per_s(channel, feed, form, end_s):
    """The speed of whole snapshots, each unpacked."""
    source, num_read, began = (
        kv.KvStreamSource(feed.session_id, feed.incarnation),
        0,
        time.perf_counter(),
    )
    while time.perf_counter() < end_s:
        request = kv.stream_request(source, feed.credential, form)
        call = channel.stream_stream(METHOD)([request.SerializeToString()])
        count = 0
        while count < NUM_TOKENS:
            frame = kv.frame_from_bytes(await call.read(), source, form)
            unpack(frame, form)
            count += frame.count
        call.cancel()
        num_read += count
    return num_read * form.bytes_per_position / (time.perf_counter() - began) / 1e6


async def main(address):
    kv.keep_freed_memory()
    async with connect(address, ChannelOptions()) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        about = await stub.DescribeTarget(target_pb2.DescribeTargetRequest())
        dtype = kv.DTYPE.from_pb(about.layout.dtype, may_be_none=False)
        whole = value_from_pb(KvLayout, about.layout, dtype=element_type(dtype), device=CPU)
        layers = tuple(range(whole.num_layers))
        raw = kv.KvFormat(layers, whole.num_kv_heads, whole.head_dim, dtype)

        peer, found = Peer("the target", channel), defaultdict(list)
        target, rounds = (RemoteTarget(peer, about.identity, CallOptions()) for _ in range(2))
        await target.verify(text("kv", NUM_TOKENS), Proposal())
        for form in [replace(raw, encoding=of) for of in kv.KvEncoding] * REPEATS:
            speed = partial(mb_per_s, channel, target.feed(address), form)
            found["rounds alone, ms"].append(await round_ms(rounds, until()))
            found[f"{form.encoding}, MB/s"].append(await speed(until()))
            beside, rounds_ms = await asyncio.gather(speed(until()), round_ms(rounds, until()))
            found[f"{form.encoding} beside rounds, MB/s"].append(beside)
            found[f"rounds beside {form.encoding}, ms"].append(rounds_ms)
        target.end()
        rounds.end()
    for name, values in found.items():
        print(f"{name:32}{median(values):10.2f}")  # noqa: T201 - a command


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
