"""Figures of docs/benchmarks.md: keys and values over loopback, and the rounds beside them.

python tests/kv_measurements.py

The target, the session that verifies without pause and the reader are three processes.
"""

import asyncio
import multiprocessing
import sys
import time
from dataclasses import replace
from statistics import median

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Session
from slipstream.draft.kv_receiver import KvAddress
from slipstream.draft.kv_receivers import KvReceivers
from slipstream.models.dtypes import CPU
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.kv import KvDtype, KvEncoding, KvFormat, KvStreamSource
from support.models import tiny
from support.services.served_target import IDENTITY, Served, served_target, wide_model

PROMPT = tuple(tiny.tokens(4096))
FORM = KvFormat((0, 1, 2, 3), num_kv_heads=8, head_dim=128, dtype=KvDtype.BFLOAT16)
SECONDS = 2.5
NUM_ROUNDS = 200


def target(pipe):
    """Serve four layers with the keys and values of Llama-3-8B until the pipe is closed."""
    model = wide_model(hidden_size=768, intermediate_size=2048, max_positions=8192)

    async def serve():
        async with served_target(model, num_pages=128) as served:
            pipe.send(served.address)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(serve())


def rounds(pipe, address):
    """Verify without pause for as long as the pipe says; send the median round each time."""

    async def serve():
        async with connect(address, ChannelOptions()) as channel:
            served = Served(None, channel, None, address)
            while seconds := await asyncio.to_thread(pipe.recv):
                pipe.send(1e3 * median(await round_times(served, seconds)))

    asyncio.run(serve())


async def round_times(served, seconds):
    """Return the seconds of each of a session's rounds, which never pauses."""
    stream = await served.open(Session("rounds", 128, 8000))
    tokens, start, times, until = PROMPT[:128], 0, [], time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        verdict = await stream.verify(start, tokens[start:])
        times.append(time.perf_counter() - began)
        start, tokens = len(tokens), (*tokens, *verdict.tokens)
        if len(tokens) == 256:  # so that rounds stay alike
            start, tokens = 128, tokens[:129]
    await stream.end()
    return times


async def read(stream, address, form):
    """Stream snapshots into new mirrors; return MB/s."""
    receivers = KvReceivers(ChannelOptions(), CPU)
    source = KvStreamSource(stream.session_id, IDENTITY.incarnation)
    place = KvAddress(address, source, stream.credential)
    sequence = TokenSequence(Session(stream.session_id, len(PROMPT), 1000), PROMPT)
    num_bytes, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        receivers.follow(sequence, place, form, num_same=lambda: 0, parent=None)
        await receivers.wait(stream.session_id, len(PROMPT), 60)
        num_bytes += len(PROMPT) * form.bytes_per_position
        await asyncio.wait({receivers.close(stream.session_id)})
    await receivers.aclose()
    return num_bytes / elapsed / 1e6


async def delay(served, address):
    """Return how many ms after a round's verdict its keys and values are there."""
    receivers, session = KvReceivers(ChannelOptions(), CPU), Session("small", 128, 8000)
    stream, times = await served.open(session), []
    place = KvAddress(address, KvStreamSource("small", IDENTITY.incarnation), stream.credential)
    tokens, start = PROMPT[:128], 0
    for _ in range(NUM_ROUNDS):
        sent, start = tokens[start:], len(tokens)
        verdict = await stream.verify(start - len(sent), sent)
        began, sequence = time.perf_counter(), TokenSequence(session, tokens)
        receivers.follow(sequence, place, FORM, num_same=lambda: 8000, parent=None)
        await receivers.wait("small", len(tokens), 60)
        times.append(1e3 * (time.perf_counter() - began))
        tokens = (*tokens, *verdict.tokens)
    await stream.end()
    await receivers.aclose()
    return median(times)


async def measure(address, pipe):
    async def beside(form=None):
        """Run the session, and the stream beside it; return MB/s and its median round."""
        pipe.send(SECONDS)
        speed = await read(stream, address, form) if form else 0.0
        return speed, await asyncio.to_thread(pipe.recv)

    async with connect(address, ChannelOptions()) as channel:
        served = Served(None, channel, None, address)
        stream = await served.open(Session("large", len(PROMPT), 1000))
        await stream.verify(0, PROMPT)
        say(f"a small delta is there {await delay(served, address):.2f} ms after its verdict")
        say(f"the session alone: {(await beside())[1]:.1f} ms a round")
        for form in (FORM, replace(FORM, encoding=KvEncoding.INT8)):
            alone = await read(stream, address, form)
            speed, round_ms = await beside(form)
            say(
                f"{form.encoding}: {alone:.0f} MB/s alone; {speed:.0f} MB/s beside the session,"
                f" whose median round is {round_ms:.1f} ms"
            )
        pipe.send(0)
        await stream.end()


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def start(context, run, *arguments):
    pipe, other = context.Pipe()
    context.Process(target=run, args=(other, *arguments), daemon=True).start()
    return pipe


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    served_pipe = start(context, target)
    address = served_pipe.recv()
    asyncio.run(measure(address, start(context, rounds, address)))
    served_pipe.send(None)
