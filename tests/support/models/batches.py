"""Targets that many sessions share, sessions for them, and proposals that are right for a while."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import asynccontextmanager

from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session, Verdict
from slipstream.engine.thread import EngineThread
from slipstream.verifying.batcher import BatchedTarget
from support.models import tiny

SAMPLED = SamplingParams(temperature=1.0, seed=7, top_p=0.95)


@asynccontextmanager
async def batched(engine, budget=None, **options):
    thread = EngineThread("target")
    target = BatchedTarget(engine, thread, budget, **options)
    try:
        yield target, thread
    finally:
        await target.close()
        thread.close()


@asynccontextmanager
async def held(thread):
    """The engine's thread does nothing else meanwhile."""
    go, began = threading.Event(), threading.Event()
    job = asyncio.ensure_future(thread.run(lambda: (began.set(), go.wait(60))))
    await asyncio.to_thread(began.wait, 60)
    yield
    go.set()
    await job


def session_of(number: int, num_tokens: int, max_tokens: int = 24) -> Session:
    sampling = SAMPLED if number % 2 else SamplingParams()
    return Session(f"s{number}", num_tokens, max_tokens, sampling)


def guess(number: int, round_: int, ahead: list[int]) -> Proposal:
    """Right for a while, then wrong, with a wrong branch: of another size every time."""
    tokens = (*ahead[: (number + round_) % 5], 1 + (number * round_) % (tiny.VOCAB - 1))
    parents = (*range(-1, len(tokens) - 1), -1)
    other = 1 + tokens[0] % (tiny.VOCAB - 1)
    return Proposal(TokenTree((*tokens, other), parents))


def verifying(
    target: BatchedTarget, number: int, prompt: Sequence[int], num_tokens: int | None = None
) -> "asyncio.Future[Verdict]":
    """A verification under way of a prompt, of so many tokens where a text goes on behind it."""
    session = session_of(number, num_tokens or len(prompt))
    return asyncio.ensure_future(target.verify(TokenSequence(session, prompt), Proposal()))


def ask(target: BatchedTarget, number: int) -> "asyncio.Future[Verdict]":
    """A verification under way of a prompt of 100 tokens."""
    return verifying(target, number, tuple(tiny.tokens(100, number)))
