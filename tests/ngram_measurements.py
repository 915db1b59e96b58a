"""Figures of docs/concepts/ngrams.md: lookups by size of a store, and what learning brings.

python tests/ngram_measurements.py sizes 1000000 10000000
python tests/ngram_measurements.py learning smollm2-135m-q4_1 PROMPTS 120
"""

import asyncio
import json
import resource
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from slipstream.engine.thread import EngineThread
from slipstream.models.loading import load_model
from slipstream.ngrams.store_file import SUFFIX, NgramFile, StoreHeader
from slipstream.rpc.leases import LeaseLimits
from slipstream.target.batcher import BatchedTarget
from slipstream.target.build import build_target
from slipstream.target.description import describe
from slipstream.target.servicer import TargetServicer
from slipstream.train.data import Document
from slipstream.train.ngrams import CountSettings, count, fitting, write_store
from support.services.fleet import TARGET, Worker, register_target, routed, running
from support.state.redis_server import redis_server

VOCAB = 49_152
NUM_TOKENS = 48


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def sizes(numbers):
    """Measure stores of synthetic text, whose tokens are as frequent as words are, unbounded."""
    for number in numbers:
        ids = synthetic(number)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"synthetic{SUFFIX}"
            began = time.perf_counter()
            write_synthetic(path, ids)
            built = time.perf_counter() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            before, began = resident(), time.perf_counter()
            store = NgramFile(path)
            opened = time.perf_counter() - began
            places = np.random.default_rng(2).integers(4, number, 20_000)
            ends = [ids[at : at - 4 : -1].tolist() for at in places]
            began = time.perf_counter()
            for latest in ends:
                store.after(latest)
            each = (time.perf_counter() - began) / len(ends)
            say(
                f"{number} tokens: {store.num_contexts} contexts, {store.num_bytes / 1e6:.1f} MB,"
                f" {store.num_bytes / number:.2f} bytes a token, opened in {opened:.3f} s with"
                f" {resident() - before:.1f} MB resident, {1e6 * each:.1f} us a lookup;"
                f" built in {built:.0f} s with up to {peak:.1f} GB"
            )


def synthetic(number):
    """Return token ids, drawn a part at a time: `zipf` returns eight bytes for each."""
    draw = np.random.default_rng(1)
    parts = [min(10_000_000, number - at) for at in range(0, number, 10_000_000)]
    return np.concatenate([(draw.zipf(1.2, part) % VOCAB).astype(np.int32) for part in parts])


def write_synthetic(path, ids):
    settings = CountSettings(max_bytes=1 << 40)
    documents = [Document(part, 1) for part in np.array_split(ids, max(len(ids) // 1000, 1))]
    tables = count(documents, settings, progress=lambda done, total: None)
    arrays = fitting(tables, settings, VOCAB)
    write_store(path, arrays, StoreHeader("", VOCAB, settings.max_context, len(ids)))


def resident():
    """Return the memory of this process that is resident, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def target_of(model):
    loaded = load_model(model)
    built = build_target(loaded)
    about = describe(loaded, built, max_sessions=8)
    return Worker(
        lambda: TargetServicer(
            BatchedTarget(built.target, EngineThread("target")), about, LeaseLimits()
        ),
        TARGET,
        register_target,
    )


async def learning(model, prompts, limit):
    """The same requests with small changes, after as many others: with learning and without."""
    texts = [json.loads(line)["prompt"] for line in Path(prompts).read_text().split("\n") if line]
    asked, others = texts[:limit], texts[limit : 2 * limit]
    target = target_of(model)
    third = limit // 3
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        learns = {"learn": "model", "store_url": server.url}
        await stack.enter_async_context(running(target))
        without = await stack.enter_async_context(routed([target]))
        async with routed([target], **learns) as first, routed([target], **learns) as second:
            for text in (*asked, *others):
                await first.generate(text, max_tokens=NUM_TOKENS)
            await compare("the same router", without, first, asked[:third])
            await compare("another router", without, second, asked[third : 2 * third])
        again = await stack.enter_async_context(routed([target], **learns))
        await again.generate("Hello.", max_tokens=4)  # its scope is loaded meanwhile
        await asyncio.sleep(2)
        await compare("after a restart", without, again, asked[2 * third : 3 * third])


async def compare(name, without, with_it, texts):
    seconds, rounds, tokens = [0.0, 0.0], [0, 0], [0, 0]
    for number, text in enumerate(texts):
        answers = [None, None]
        for side in (0, 1) if number % 2 else (1, 0):
            client = (without, with_it)[side]
            answer = await client.generate(f"{text} Answer briefly.", max_tokens=NUM_TOKENS)
            speculation, timings = answer.stats.speculation, answer.stats.timings
            seconds[side] += timings.decode_s
            rounds[side] += speculation.num_spec_steps + speculation.num_plain_steps
            tokens[side] += len(answer.token_ids) - 1
            answers[side] = answer.token_ids
        assert answers[0] == answers[1]
    each = [count / max(number, 1) for count, number in zip(tokens, rounds, strict=True)]
    say(
        f"{name}: {seconds[0] / seconds[1]:.2f}x the speed without learning, {each[1]:.2f} tokens"
        f" a round instead of {each[0]:.2f} ({len(texts)} requests, tokens identical)"
    )


if __name__ == "__main__":
    if sys.argv[1] == "sizes":
        sizes([int(number) for number in sys.argv[2:]])
    else:
        asyncio.run(learning(sys.argv[2], sys.argv[3], int(sys.argv[4])))
