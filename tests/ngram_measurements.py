"""Figures of docs/concepts/ngrams.md: lookups by size, overlap of sources, what learning brings.

python tests/ngram_measurements.py sizes 1000000 10000000 100000000
python tests/ngram_measurements.py overlap smollm2-135m-q4_1 PROMPTS 20
python tests/ngram_measurements.py doubt DATA
python tests/ngram_measurements.py learning smollm2-135m-q4_1 PROMPTS 120
"""

import asyncio
import json
import math
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from slipstream.client import Client
from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.draft.guesses import LEARNED_DOUBT
from slipstream.core.draft.ngram import OwnText
from slipstream.core.draft.ngram_sources import LATEST, MatchAcceptance
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Proposal, Session
from slipstream.ngrams.memory import LearnedTexts
from slipstream.ngrams.store_file import SUFFIX, NgramFile, StoreHeader
from slipstream.text.prompts import encode_prompt
from slipstream.train.data import Document, read_lines
from slipstream.train.ngrams import CountSettings, count, fitting, write_store
from support.services.processes import serve
from support.state.redis_server import redis_server

VOCAB = 49_152
NUM_TOKENS = 48
LOCAL = ("--address", "127.0.0.1:0")


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


def prompts_of(path, limit):
    """Return the first prompts of JSON lines with a prompt, or with turns of which one is taken."""
    lines = [json.loads(line) for line in Path(path).read_text().split("\n") if line]
    return [at["prompt"] if "prompt" in at else at["turns"][0] for at in lines[:limit]]


async def overlap(model, prompts, limit):
    """Count the positions of greedy text at which each source's first candidate is right."""
    engine = Engine.load(model, EngineOptions())
    glide, store = engine.drafter("glide").draft, engine.sources.store
    seen = Counter()
    for number, text in enumerate(prompts_of(prompts, limit)):
        ids = encode_prompt(engine.text, text)
        session = Session(str(number), len(ids), 65, stop_token_ids=engine.facts.stop_token_ids)
        sequence, own = TokenSequence(session, ids), OwnText()
        own.append(ids)
        verdict = await engine.target.verify(sequence, Proposal())
        while verdict.finish_reason is None:
            sequence.append(verdict.tokens)
            own.append(verdict.tokens)
            drafted = (await glide.propose(sequence, Plan(1, 1))).tree.tokens
            stored = store.after(sequence.tokens[: -LATEST - 1 : -1])
            copied = own.after()
            verdict = await engine.target.verify(sequence, Proposal())
            token = verdict.tokens[0]
            found = {"GliDe": drafted[:1], "store": [at[0] for at in stored[:1]]}
            found["own text"] = () if copied is None else copied[:1]
            seen[tuple(name for name, guess in found.items() if token in guess)] += 1
        await glide.release(session.session_id)
        await engine.target.release(session.session_id)
    total = seen.total()
    say(f"{total} positions of {limit} prompts")
    for right, number in sorted(seen.items(), key=lambda at: (len(at[0]), at[0])):
        say(f"{'only ' + ' and '.join(right) if right else 'none'}: {100 * number / total:.1f}%")
    for name in ("GliDe", "store", "own text"):
        share = sum(number for right, number in seen.items() if name in right) / total
        say(f"{name}: {100 * share:.1f}%")


def doubt(path):
    """Replay recorded texts: which doubt predicts best what follows a match in earlier ones."""
    memory, seen = LearnedTexts(1 << 22), set()
    places = {"a prompt that came before": [], "another prompt": []}
    for line in read_lines(Path(path))[1]:
        at = json.loads(line)
        text, prompt = at["p"] + at["g"], tuple(at["p"])
        ends = range(len(prompt), len(text))
        found = [memory.after(text[max(end - LATEST, 0) : end][::-1]) for end in ends]
        matches = [
            (match[1], match[0] == token)
            for match, token in zip(found, at["g"], strict=True)
            if match is not None
        ]
        places["a prompt that came before" if prompt in seen else "another prompt"].append(matches)
        seen.add(prompt)
        memory.learn(text)
    for name, texts in places.items():
        number = sum(map(len, texts))
        right = sum(is_right for matches in texts for _, is_right in matches)
        say(f"{name}: {len(texts)} texts, {number} matches, {right / number:.2f} right")
        for one in (1, 2, 4, LEARNED_DOUBT, 16, 32):
            loss = sum(map(loss_of, texts, [one] * len(texts))) / number
            say(f"  doubt {one:g}: {loss:.4f} nats a match")


def loss_of(matches, doubt):
    """Return the log loss of one request, which learns as it goes on."""
    acceptance, loss = MatchAcceptance(doubt), 0.0
    for match, is_right in matches:
        share = acceptance.of(match)
        loss -= math.log(share if is_right else 1 - share)
        acceptance.learn(match, is_right=is_right)
    return loss


def learning(model, prompts, limit):
    """Compare the same requests with small changes, after as many others: learning and not."""
    began = time.perf_counter()
    texts = prompts_of(prompts, 2 * limit)
    asked, third = texts[:limit], limit // 3
    with ExitStack() as stack:
        start = lambda *flags: stack.enter_context(serve(flags[0], *LOCAL, *flags[1:]))  # noqa: E731
        store = stack.enter_context(redis_server()).url
        target = start("target", "--model", model).ready()
        drafts = [start("draft", "--target-model", model).ready() for _ in range(2)]
        flags = ("router", "--targets", target, "--drafts", ",".join(drafts))
        learns = (*flags, "--learn", "model", "--store-url", store)
        routers = [start(*flags), start(*learns), start(*learns)]
        without, first, second = [stack.enter_context(client_of(at)) for at in routers]
        for text in texts:
            first.generate(text, max_tokens=NUM_TOKENS)
        compare("the same router", without, first, asked[:third])
        compare("another router", without, second, asked[third : 2 * third])
        routers[1].signal(signal.SIGTERM)
        routers[1].wait()
        again = stack.enter_context(client_of(start(*learns)))
        again.generate("Hello.", max_tokens=4)  # its scope is loaded meanwhile
        time.sleep(2)
        compare("after a restart", without, again, asked[2 * third : 3 * third])
    say(f"{limit} requests, {limit} others: {time.perf_counter() - began:.0f} s")


def client_of(router):
    """Return a client of a router process, once that has both drafts."""
    client = Client(router.ready())
    while (
        sum(at.role == "draft" and at.state == "ready" for at in client.server_info().replicas) < 2
    ):
        time.sleep(0.1)
    return client


def compare(name, without, with_it, texts):
    seconds, rounds, tokens = [0.0, 0.0], [0, 0], [0, 0]
    for number, text in enumerate(texts):
        answers = [None, None]
        for side in (0, 1) if number % 2 else (1, 0):
            client = (without, with_it)[side]
            answer = client.generate(f"{text} Answer briefly.", max_tokens=NUM_TOKENS)
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
    mode, arguments = sys.argv[1], sys.argv[2:]
    if mode == "sizes":
        sizes([int(number) for number in arguments])
    elif mode == "doubt":
        doubt(*arguments)
    elif mode == "overlap":
        asyncio.run(overlap(*arguments[:2], int(arguments[2])))
    else:
        learning(*arguments[:2], int(arguments[2]))
