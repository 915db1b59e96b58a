"""Laws of a target that many sessions share: verdicts as alone, and errors of whom they concern."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
import torch

import tiny
from slipstream.core.errors import (
    CapacityError,
    NoRoom,
    SessionClosed,
    SessionOutOfSync,
    SessionTaken,
    Unavailable,
)
from slipstream.core.inline import finished
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta, Proposal, SamplingParams, Session
from slipstream.engine.thread import EngineThread
from slipstream.target.batcher import BatchedTarget, BatchLimits
from slipstream.target.schedule import RowBudget

SAMPLED = SamplingParams(temperature=1.0, seed=7, top_p=0.95)
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def model():
    return tiny.causal()


class Faulty:
    """An engine whose step fails as often as told."""

    def __init__(self, engine):
        self._engine = engine
        self.num_failures = 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def step(self, shares):
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("out of luck")
        self._engine.step(shares)


@asynccontextmanager
async def batched(engine, limits=None):
    thread = EngineThread("target")
    target = BatchedTarget(engine, thread, limits)
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


async def conversation(verify, number: int, prompt: tuple[int, ...], known=()) -> list:
    """All verdicts of a request; `known` is how it goes on."""
    session, tokens, told, verdicts = session_of(number, len(prompt)), list(prompt), 0, []
    proposal = Proposal()
    while True:
        verdict = await verify(session, Delta.since(told, tokens), proposal)
        told = len(tokens)
        tokens += verdict.tokens
        verdicts.append(verdict)
        if verdict.finish_reason is not None:
            return verdicts
        ahead = list(known[len(tokens) - len(prompt) :])
        proposal = guess(number, len(verdicts), ahead) if known else Proposal()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_verdicts_are_those_of_a_target_of_ones_own(dtype):
    model = tiny.causal(dtype=dtype)
    prompts = [tuple(tiny.tokens(length, length)) for length in (1, 5, 40, 127, 128, 129, 260, 300)]
    alone = tiny.local_target(model)
    plain, drafted = [], []
    for number, prompt in enumerate(prompts):
        verdicts = await conversation(alone.verify, number, prompt)
        plain.append([token for verdict in verdicts for token in verdict.tokens])
        await alone.release(f"s{number}")
        drafted.append(await conversation(alone.verify, number, prompt, plain[-1]))
        await alone.release(f"s{number}")
    limits = BatchLimits(RowBudget(max_rows=48, tile=16))
    async with batched(tiny.local_target(model), limits) as (target, _):
        together = await asyncio.gather(
            *(
                conversation(target.verify, number, prompt, plain[number])
                for number, prompt in enumerate(prompts)
            )
        )
    for verdicts, expected in zip(together, drafted, strict=True):
        assert [verdict.tokens for verdict in verdicts] == [at.tokens for at in expected]
        assert [at.num_accepted for at in verdicts] == [at.num_accepted for at in expected]
    assert any(verdict.num_accepted > 2 for verdicts in drafted for verdict in verdicts)


async def test_sessions_share_their_steps(model):
    async with batched(tiny.local_target(model)) as (target, _):
        answers = await asyncio.gather(
            *(
                conversation(target.verify, 2 * number, tuple(tiny.tokens(8, number)))
                for number in range(8)
            )
        )
        num_rounds = sum(map(len, answers))
        assert target.num_steps < num_rounds / 4
        assert target.num_rows == num_rounds - 8 + 8 * 8


async def test_a_prompt_and_running_sessions_go_on_side_by_side(model):
    limits = BatchLimits(RowBudget(max_rows=32, tile=8))
    async with batched(tiny.local_target(model), limits) as (target, _):
        running = asyncio.ensure_future(
            conversation(target.verify, 0, tuple(tiny.tokens(8)), known=())
        )
        while target.num_steps < 3:
            await asyncio.sleep(0)
        long = tuple(tiny.tokens(400))
        prompt = asyncio.ensure_future(target.run(session_of(2, 400), Delta(0, long), Proposal()))
        before = target.num_steps
        await prompt
        assert target.num_steps - before >= 400 / 32
        verdicts = await running
        alone = tiny.local_target(model)
        expected = await conversation(alone.verify, 0, tuple(tiny.tokens(8)))
        assert [verdict.tokens for verdict in verdicts] == [at.tokens for at in expected]


async def test_a_reply_says_how_long_it_waited_and_computed(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            asked = asyncio.ensure_future(
                target.run(session_of(0, 3), Delta(0, (1, 2, 3)), Proposal())
            )
            await asyncio.sleep(0)
            assert target.num_waiting == 1
        done = await asked
        assert done.queue_s > 0 < done.engine_s
        assert target.num_waiting == 0


async def test_what_is_refused_is_refused_alone(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            good, bad = (
                asyncio.ensure_future(target.verify(session_of(number, 3), delta, Proposal()))
                for number, delta in enumerate([Delta(0, (1, 2, 3)), Delta(2, (3,))])
            )
            await asyncio.sleep(0)
        assert (await good).tokens
        with pytest.raises(SessionOutOfSync):
            await bad


async def test_a_step_that_fails_is_the_error_of_those_in_it_and_the_engine_goes_on(model, caplog):
    engine = Faulty(tiny.local_target(model))
    async with batched(engine) as (target, _):
        engine.num_failures = 1
        with pytest.raises(RuntimeError, match="out of luck"):
            await target.verify(session_of(0, 3), Delta(0, (1, 2, 3)), Proposal())
        assert "a step of 1 sessions failed" in caplog.text
        assert (await target.verify(session_of(0, 3), Delta(0, (1, 2, 3)), Proposal())).tokens


async def test_a_second_call_takes_the_session_over(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            first, second = (
                asyncio.ensure_future(
                    target.verify(session_of(0, 3), Delta(0, (1, 2, 3)), Proposal())
                )
                for _ in range(2)
            )
            await asyncio.sleep(0)
            with pytest.raises(SessionTaken, match="s0"):
                await first
        assert (await second).tokens
        assert target.num_steps == 1


async def test_who_stops_waiting_is_not_computed_for(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            asked = asyncio.ensure_future(
                target.verify(session_of(0, 3), Delta(0, (1, 2, 3)), Proposal())
            )
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert (await target.verify(session_of(2, 3), Delta(0, (1, 2, 3)), Proposal())).tokens
        assert (target.num_steps, target.num_rows) == (1, 3)


async def test_a_prompt_is_dropped_between_its_chunks(model):
    limits = BatchLimits(RowBudget(max_rows=8, tile=8))
    async with batched(tiny.local_target(model), limits) as (target, _):
        prompt = tuple(tiny.tokens(400))
        asked = asyncio.ensure_future(
            target.verify(session_of(0, 400), Delta(0, prompt), Proposal())
        )
        while target.num_steps < 3:
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        verdict = await target.verify(session_of(0, 400), Delta(0, prompt), Proposal())
        assert verdict.num_cached >= 3 * 8


async def test_a_session_that_is_released_ends_what_is_under_way(model):
    engine = tiny.local_target(model)
    async with batched(engine) as (target, thread):
        async with held(thread):
            asked = asyncio.ensure_future(
                target.verify(session_of(0, 3), Delta(0, (1, 2, 3)), Proposal())
            )
            await asyncio.sleep(0)
            released = asyncio.ensure_future(target.release("s0"))
            with pytest.raises(SessionClosed):
                await asked
        await released
        assert engine.kv_bytes("s0") == 0
        assert target.num_steps == 0


async def test_a_parked_session_goes_on_where_it_was(model):
    engine = tiny.local_target(model)
    prompt = tuple(tiny.tokens(200))
    async with batched(engine) as (target, _):
        first = await target.verify(session_of(0, 200), Delta(0, prompt), Proposal())
        await target.park("s0")
        assert engine.kv_bytes("s0") == 0
        again = await target.verify(session_of(0, 200), Delta(200, first.tokens), Proposal())
        assert again.num_cached == 200


@asynccontextmanager
async def full(model, *, max_waiting=64):
    """A target whose memory two sessions, `s0` and `s2`, hold."""
    engine = tiny.local_target(model, num_pages=2)
    async with batched(engine, BatchLimits(max_waiting=max_waiting)) as (target, thread):
        for number in (0, 2):
            await ask(target, number)
        yield target, thread


def ask(target, number):
    prompt = tuple(tiny.tokens(100, number))
    return asyncio.ensure_future(
        target.verify(session_of(number, 100), Delta(0, prompt), Proposal())
    )


async def steps(target, thread):
    """All that can be done has been: a job of one's own comes after the step that it is in."""
    for _ in range(3):
        await thread.run(lambda: None)
        await asyncio.sleep(0)


async def test_who_finds_no_memory_waits_until_a_session_leaves_it(model):
    async with full(model) as (target, thread):
        waiting = ask(target, 4)
        await steps(target, thread)
        assert not waiting.done()
        assert target.num_waiting == 1
        more = await target.verify(session_of(0, 100), Delta(100, (1,)), Proposal())
        assert more.tokens
        await target.release("s2")
        assert (await waiting).tokens


@pytest.mark.parametrize("leave", ["park", "release"])
async def test_memory_goes_to_who_waited_longest(model, leave):
    async with full(model) as (target, thread):
        first, second = ask(target, 4), ask(target, 6)
        await steps(target, thread)
        await getattr(target, leave)("s0")
        await first
        assert not second.done()
        await getattr(target, leave)("s4")
        assert (await second).tokens


async def test_no_more_wait_than_may(model):
    async with full(model, max_waiting=1) as (target, _):
        waiting = ask(target, 4)
        with pytest.raises(CapacityError, match="1 requests wait"):
            await ask(target, 6)
        await target.release("s0")
        assert (await waiting).tokens


async def test_who_waits_for_memory_can_leave(model):
    async with full(model) as (target, thread):
        first, second = ask(target, 4), ask(target, 6)
        await steps(target, thread)
        first.cancel()
        await target.release("s0")
        assert (await second).tokens


async def test_what_nobody_can_make_room_for_is_refused(model):
    engine = tiny.local_target(model, num_pages=2)
    prompt = tuple(tiny.tokens(100))
    finished(engine.verify(session_of(0, 100), Delta(0, prompt), Proposal()))
    async with batched(engine) as (target, _):
        big = Session("big", 200, 20)
        with pytest.raises(NoRoom):
            await target.verify(big, Delta(0, tuple(tiny.tokens(200))), Proposal())
        assert (await ask(target, 2)).tokens


async def test_a_target_that_stops_takes_nothing_more(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            asked = ask(target, 0)
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(target.close())
            with pytest.raises(Unavailable):
                await asked
        await closing
        with pytest.raises(Unavailable):
            await ask(target, 2)
