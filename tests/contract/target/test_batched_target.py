"""Laws of a target that many sessions share: verdicts as alone, errors and waits of their own."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import torch

from slipstream.core import errors
from slipstream.core.errors import CapacityError, NoRoom
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.engine.thread import MAX_FAILED_STEPS
from slipstream.verifying.meter import StepBudget
from support.models import tiny
from support.models.batches import ask, batched, guess, held, session_of, verifying

DTYPES = [torch.float32, torch.bfloat16]


class Faulty:
    """An engine whose step fails as often as told."""

    def __init__(self, engine, error=None):
        self._engine = engine
        self._error = error or RuntimeError("out of luck")
        self.num_failures = 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def step(self, batch):
        if self.num_failures:
            self.num_failures -= 1
            raise self._error
        self._engine.step(batch)


async def conversation(verify, number: int, prompt: tuple[int, ...], known=()) -> list:
    """All verdicts of a request; `known` is how it goes on."""
    sequence, verdicts = TokenSequence(session_of(number, len(prompt)), prompt), []
    proposal = Proposal()
    while True:
        verdict = await verify(sequence, proposal)
        sequence.append(verdict.tokens)
        verdicts.append(verdict)
        if verdict.finish_reason is not None:
            return verdicts
        ahead = list(known[len(sequence) - len(prompt) :])
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
    budget = StepBudget(max_tokens=48, tile=16)
    async with batched(tiny.local_target(model), budget) as (target, _):
        asks = [(number, prompt, plain[number]) for number, prompt in enumerate(prompts)]
        together = await asyncio.gather(*(conversation(target.verify, *each) for each in asks))
    for verdicts, expected in zip(together, drafted, strict=True):
        assert [verdict.tokens for verdict in verdicts] == [at.tokens for at in expected]
        assert [at.num_accepted for at in verdicts] == [at.num_accepted for at in expected]
    assert any(verdict.num_accepted > 2 for verdicts in drafted for verdict in verdicts)


async def test_sessions_share_their_steps(model):
    async with batched(tiny.local_target(model)) as (target, _):
        asks = [(2 * number, tuple(tiny.tokens(8, number))) for number in range(8)]
        answers = await asyncio.gather(*(conversation(target.verify, *each) for each in asks))
        num_rounds = sum(map(len, answers))
        assert target.num_steps < num_rounds / 4
        assert target.num_tokens == num_rounds - 8 + 8 * 8


@pytest.mark.parametrize("kind", [RuntimeError, errors.InvalidRequest])
async def test_a_step_that_fails_is_never_blamed_on_its_requests_and_the_engine_goes_on(
    model, kind, caplog
):
    engine = Faulty(tiny.local_target(model), kind("out of luck"))
    async with batched(engine) as (target, _):
        engine.num_failures = 1
        said = r"a step of the target failed.* no fault of the request"
        with pytest.raises(errors.InternalError, match=said):
            await verifying(target, 0, (1, 2, 3))
        assert "a step of 1 sessions failed" in caplog.text
        assert "out of luck" in caplog.text
        assert (await verifying(target, 0, (1, 2, 3))).tokens


async def test_an_engine_is_broken_after_so_many_failed_steps_in_a_row_and_not_before(model):
    engine = Faulty(tiny.local_target(model))
    async with batched(engine) as (target, _):
        broken = asyncio.ensure_future(target.failed_steps.too_many())

        async def fail(times):
            engine.num_failures = times
            for _ in range(times):
                assert not broken.done()
                with pytest.raises(errors.InternalError):
                    await ask(target, 0)

        await fail(MAX_FAILED_STEPS - 1)
        assert (await ask(target, 0)).tokens
        await fail(MAX_FAILED_STEPS)
        assert f"{MAX_FAILED_STEPS} steps of the target in a row have failed" in await broken


async def test_a_second_call_takes_the_session_over(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            first, second = (verifying(target, 0, (1, 2, 3)) for _ in range(2))
            await asyncio.sleep(0)
            with pytest.raises(errors.SessionTaken, match="s0"):
                await first
        assert (await second).tokens
        assert target.num_steps == 1


@pytest.mark.parametrize("leave", ["cancel", "release"])
async def test_who_leaves_before_its_step_is_not_computed_for(model, leave):
    engine = tiny.local_target(model)
    async with batched(engine) as (target, thread):
        async with held(thread):
            asked = verifying(target, 0, (1, 2, 3))
            refused, good = verifying(target, 1, (1, 2), 3), verifying(target, 2, (1, 2, 3))
            await asyncio.sleep(0)
            if leave == "cancel":
                asked.cancel()
            left = asyncio.ensure_future(target.release("s0"))
            with pytest.raises((asyncio.CancelledError, errors.SessionClosed)):
                await asked
        with pytest.raises(errors.InvalidRequest, match="would have 2 tokens"):
            await refused
        await left
        assert engine.kv_bytes("s0") == 0
        assert (await good).tokens
        assert (target.num_steps, target.num_tokens) == (1, 3)


async def test_a_prompt_is_dropped_between_its_chunks(model):
    budget = StepBudget(max_tokens=8, tile=8)
    async with batched(tiny.local_target(model), budget) as (target, _):
        prompt = tuple(tiny.tokens(400))
        asked = verifying(target, 0, prompt)
        while target.num_steps < 3:
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await verifying(target, 0, prompt)).num_cached >= 3 * 8


async def test_a_target_that_stops_takes_nothing_more(model):
    async with batched(tiny.local_target(model)) as (target, thread):
        async with held(thread):
            asked = ask(target, 0)
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(target.close())
            with pytest.raises(errors.Unavailable):
                await asked
        await closing
        with pytest.raises(errors.Unavailable):
            await ask(target, 2)


@asynccontextmanager
async def full(model, *, max_waiting=64):
    """A target whose memory two sessions, `s0` and `s2`, hold."""
    engine = tiny.local_target(model, num_pages=2)
    async with batched(engine, max_waiting=max_waiting) as (target, thread):
        for number in (0, 2):
            await ask(target, number)
        yield target, thread


async def test_no_more_wait_than_may(model):
    async with full(model, max_waiting=1) as (target, _):
        waiting = ask(target, 4)
        with pytest.raises(CapacityError, match="1 requests wait"):
            await ask(target, 6)
        await target.release("s0")
        assert (await waiting).tokens


async def test_requests_larger_than_all_memory_are_refused(model):
    engine = tiny.local_target(model, num_pages=2)
    prompt = tuple(tiny.tokens(100))
    finished(engine.verify(TokenSequence(session_of(0, 100), prompt), Proposal()))
    async with batched(engine) as (target, _):
        big = Session("big", 200, 20)
        with pytest.raises(NoRoom):
            await target.verify(TokenSequence(big, tiny.tokens(200)), Proposal())
        assert (await ask(target, 2)).tokens
