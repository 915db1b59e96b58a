"""Grammars are compiled on a thread for that alone: no session waits for those of others."""

import asyncio
import threading

import pytest

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from slipstream.models.target.causal import CausalModel
from slipstream.verifying.grammars import MAX_COMPILED, MAX_COMPILING
from support.models import tiny
from support.models.batches import batched, held
from support.models.grammar_texts import STOPS, grammars, ids, regex
from support.models.tiny_checkpoint import tiny_llama

PROMPT = tuple(ids("say: "))
WORDS = regex("(red|green|blue)( and (red|green|blue)){1,4}[.]")
HUNGRY = regex("(.*a.{300}){200}b")


@pytest.fixture
def engine():
    """An engine whose grammars keep a record of the threads that compiled them."""
    model = tiny_llama().eval()
    model.config.max_position_embeddings = 1024
    engine = tiny.local_target(CausalModel(model))
    engine.grammars = grammars()
    make = engine.grammars._make_matcher
    engine.threads = []

    def made(grammar):
        engine.threads.append(threading.current_thread().name)
        return make(grammar)

    engine.grammars._make_matcher = made
    return engine


def session_of(name, grammar=None, most=500):
    return Session(name, len(PROMPT), most, stop_token_ids=STOPS, grammar=grammar)


async def verify(target, session, output=()):
    return await target.verify(TokenSequence(session, (*PROMPT, *output)), Proposal())


async def test_no_grammar_is_compiled_on_the_engine_s_thread(engine):
    """Not for what begins, what was evicted, what goes back, and what is used up either."""
    async with batched(engine) as (target, _):
        first = await verify(target, session_of("a", WORDS))
        for count in range(1, MAX_COMPILED + 2):
            await target.prepare(session_of("b", regex(f"x{{{count}}}")))
        assert engine.grammars.find(regex("x{1}")) is None
        await verify(target, session_of("a", WORDS), first.tokens)
        await verify(target, session_of("a", WORDS))
        hungry = await target.prepare(session_of("c", HUNGRY))
        while hungry.spare is None:  # that one is made after the one that is used first
            await asyncio.sleep(0.01)
        with pytest.raises(InvalidRequest, match="beyond 400 tokens"):
            await verify(target, session_of("c", HUNGRY), ids("a" * 400))
        with pytest.raises(InvalidRequest, match="does not follow"):
            await verify(target, session_of("a", WORDS), ids("yellow"))
    assert len(engine.threads) > MAX_COMPILED
    assert {name.split("_")[0] for name in engine.threads} == {"grammars"}


async def test_a_prepared_grammar_is_found_for_as_long_as_it_is_held(engine):
    async with batched(engine) as (target, _):
        prepared = await target.prepare(session_of("a", WORDS))
        for count in range(1, MAX_COMPILED + 2):
            await target.prepare(session_of("b", regex(f"x{{{count}}}")))
        run = target.run(TokenSequence(session_of("a", WORDS), PROMPT), Proposal())
        assert (await run).result().tokens
        assert prepared.grammar == WORDS


async def test_steps_of_others_go_on_while_a_grammar_is_compiled(engine):
    is_compiling, may_end = threading.Event(), threading.Event()
    make = engine.grammars._make_matcher

    def slow(grammar):
        is_compiling.set()
        may_end.wait(30)
        return make(grammar)

    engine.grammars._make_matcher = slow
    async with batched(engine) as (target, _):
        waiting = asyncio.ensure_future(verify(target, session_of("a", WORDS)))
        await asyncio.to_thread(is_compiling.wait)
        for _ in range(3):
            assert (await verify(target, session_of("b"))).tokens
        assert not waiting.done()
        may_end.set()
        assert (await waiting).tokens


async def test_no_more_grammars_wait_to_be_compiled_than_may(engine):
    may_end = threading.Event()
    engine.grammars._thread.submit(may_end.wait, 30)
    async with batched(engine) as (target, thread):
        waiting = [
            asyncio.ensure_future(target.prepare(session_of("a", regex(f"x{{{count}}}"))))
            for count in range(1, MAX_COMPILING + 1)
        ]
        async with held(thread):
            await asyncio.sleep(0)
            with pytest.raises(CapacityError, match=f"{MAX_COMPILING} grammars wait"):
                await target.prepare(session_of("b", WORDS))
        waiting[0].cancel()
        may_end.set()
        await asyncio.gather(*waiting[1:])
        assert await target.prepare(session_of("b", WORDS))
