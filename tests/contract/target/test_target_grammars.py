"""A target whose sessions follow grammars: whatever is proposed, the text is the grammar's, and
grammars are compiled on a thread for that alone: no session waits for those of others."""

import asyncio
import itertools
import random
import re
import threading

import pytest

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session
from slipstream.models.loading import load_model
from slipstream.verifying.build import BuiltTarget, build_target
from slipstream.verifying.grammars import MAX_COMPILED, MAX_COMPILING
from support.models import tiny
from support.models.batches import batched, held
from support.models.grammar_texts import EOS, STOPS, TEXT, VOCAB, grammars, ids, regex
from support.models.in_memory import causal_model
from support.models.tiny_checkpoint import tiny_llama
from support.services import fleet

WORDS = regex("(red|green|blue)( and (red|green|blue)){1,4}[.]")
HUNGRY = regex("(.*a.{300}){200}b")
DATE = regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")
PROMPT = tuple(ids("say: red"))
SAMPLINGS = [SamplingParams(), SamplingParams(temperature=1.0, seed=4), SamplingParams(1.2, 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def build(folder):
    def make() -> BuiltTarget:
        return build_target(load_model(str(folder), dtype="float32", device="cpu"))

    return make


@pytest.fixture(scope="module")
def built(build):
    return build()


def session_of(sampling=SAMPLINGS[0], grammar=WORDS, *, name="s", num_prompt=None, most=60):
    length = num_prompt or len(PROMPT)
    return Session(name, length, most, sampling, stop_token_ids=STOPS, grammar=grammar)


async def written(target, session, guess=None, *, known=(), prompt=PROMPT):
    """The output, its verdicts and why it ended; `guess` proposes after each verdict."""
    sequence, proposal, verdicts = TokenSequence(session, (*prompt, *known)), Proposal(), []
    while True:
        verdict = await target.verify(sequence, proposal)
        sequence.append(verdict.tokens)
        verdicts.append(verdict)
        if verdict.finish_reason is not None:
            await target.release(session.session_id)
            return sequence.tokens[len(prompt) :], verdicts
        proposal = guess(sequence.tokens[len(prompt) :], verdict) if guess else Proposal()


def follows(grammar, output):
    return output[-1] == EOS and re.fullmatch(grammar.text, TEXT.decode(output)) is not None


def adversary(seed, right):
    """Trees of what is right for a while, of what is forbidden, and of stop tokens too early."""
    rng = random.Random(seed)

    def guess(output, verdict):
        ahead = right[len(output) : len(output) + rng.randrange(6)]
        tokens, parents = list(ahead), list(range(-1, len(ahead) - 1))
        for _ in range(rng.randrange(6)):
            parent = rng.randrange(-1, len(tokens))
            token = rng.choice([EOS, 1, rng.randrange(VOCAB)])
            if (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
        return Proposal(TokenTree(tuple(tokens), tuple(parents)))

    return guess


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_no_proposal_changes_a_token_or_gets_a_forbidden_one_through(built, sampling):
    session = session_of(sampling)
    plain, _ = await written(built.target, session)
    assert follows(WORDS, plain)
    for seed in range(4):
        output, verdicts = await written(built.target, session, adversary(seed, plain))
        assert output == plain
        assert sum(verdict.num_accepted for verdict in verdicts) > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_jump_forward_tokens_are_marked_and_right_when_they_are_proposed(built, sampling):
    def guess(output, verdict):
        return Proposal(TokenTree.chain(verdict.forced))

    session = session_of(sampling)
    plain, rounds = await written(built.target, session)
    output, fewer = await written(built.target, session, guess)
    assert output == plain
    assert len(fewer) < len(rounds)
    for before, after in itertools.pairwise(fewer):
        assert after.num_accepted == len(before.forced)


async def test_each_turn_follows_its_own_grammar_and_none_the_text_before(built):
    target, tokens = built.target, list(PROMPT)
    for grammar in (WORDS, DATE, None, DATE):
        session = session_of(grammar=grammar, num_prompt=len(tokens), most=24)
        sequence, start = TokenSequence(session, tokens), len(tokens)
        while True:
            verdict = await target.verify(sequence, Proposal())
            sequence.append(verdict.tokens)
            if verdict.finish_reason is not None:
                break
        tokens = sequence.tokens
        if grammar is DATE:
            assert follows(DATE, tokens[start:])
        target.park("s")
    await target.release("s")


@pytest.mark.parametrize(
    ("grammar", "known", "reason"),
    [
        (regex("[a"), "", "unclosed"),
        (WORDS, "yellow", "does not follow the regex"),
        (WORDS, "red and red.\x00", "does not follow the regex"),
    ],
)
async def test_what_is_refused_leaves_the_session_as_it_was(built, grammar, known, reason):
    session = session_of()
    first = await built.target.verify(TokenSequence(session, PROMPT), Proposal())
    tokens, num_bytes = [*PROMPT, *first.tokens], built.target.kv_bytes("s")
    bad = session_of(grammar=grammar)
    with pytest.raises(InvalidRequest, match=reason):
        await built.target.verify(TokenSequence(bad, (*PROMPT, *ids(known))), Proposal())
    assert built.target.kv_bytes("s") == num_bytes
    again = await built.target.verify(TokenSequence(session, tokens), Proposal())
    assert again.num_cached == len(PROMPT)
    await built.target.release("s")


async def test_a_parser_that_gives_up_ends_its_request_and_no_other(built):
    hungry = session_of(grammar=HUNGRY, name="hungry", most=3000)
    modest = session_of()
    plain, _ = await written(built.target, modest)
    known = ids("a" * 2500)
    engine = built.target
    for grammar in (hungry.grammar, regex("z")):  # behind the second the first one's spare is made
        engine.grammars.compile(grammar).result()
    async with batched(engine) as (target, _):
        results = await asyncio.gather(
            written(target, hungry, known=known), written(target, modest), return_exceptions=True
        )
    error, (output, _) = results
    assert isinstance(error, InvalidRequest)
    assert "can't be followed beyond 2500 tokens: lexer error" in str(error)
    assert output == plain
    await engine.release("hungry")


async def test_sessions_with_and_without_grammars_share_steps(built):
    def each(number):
        grammar = (WORDS, None, DATE)[number % 3]
        return session_of(SAMPLINGS[number % 3], grammar, name=f"s{number}", most=40)

    sessions = [each(number) for number in range(6)]
    alone = [(await written(built.target, session))[0] for session in sessions]
    async with batched(built.target) as (target, _):
        together = await asyncio.gather(*[written(target, session) for session in sessions])
    assert [output for output, _ in together] == alone


@pytest.fixture
def engine():
    """An engine whose grammars keep a record of the threads that compiled them."""
    model = tiny_llama().eval()
    model.config.max_position_embeddings = 1024
    engine = tiny.local_target(causal_model(model))
    engine.grammars = grammars()
    make = engine.grammars._make_matcher
    engine.threads = []

    def made(grammar):
        engine.threads.append(threading.current_thread().name)
        return make(grammar)

    engine.grammars._make_matcher = made
    return engine


def asked(name, grammar=None):
    return session_of(grammar=grammar, name=name, most=500)


async def verify(target, session, output=()):
    return await target.verify(TokenSequence(session, (*PROMPT, *output)), Proposal())


async def test_no_grammar_is_compiled_on_the_engine_s_thread(engine):
    """Not for what begins, what was evicted, what goes back, and what is used up either."""
    async with batched(engine) as (target, _):
        first = await verify(target, asked("a", WORDS))
        for count in range(1, MAX_COMPILED + 2):
            await target.prepare(asked("b", regex(f"x{{{count}}}")))
        assert engine.grammars.find(regex("x{1}")) is None
        await verify(target, asked("a", WORDS), first.tokens)
        await verify(target, asked("a", WORDS))
        hungry = await target.prepare(asked("c", HUNGRY))
        while hungry.spare is None:  # that one is made after the one that is used first
            await asyncio.sleep(0.01)
        with pytest.raises(InvalidRequest, match="beyond 400 tokens"):
            await verify(target, asked("c", HUNGRY), ids("a" * 400))
        with pytest.raises(InvalidRequest, match="does not follow"):
            await verify(target, asked("a", WORDS), ids("yellow"))
    assert len(engine.threads) > MAX_COMPILED
    assert {name.split("_")[0] for name in engine.threads} == {"grammars"}


async def test_no_more_grammars_wait_to_be_compiled_than_may(engine):
    may_end = threading.Event()
    engine.grammars._thread.submit(may_end.wait, 30)
    async with batched(engine) as (target, thread):
        waiting = [
            asyncio.ensure_future(target.prepare(asked("a", regex(f"x{{{count}}}"))))
            for count in range(1, MAX_COMPILING + 1)
        ]
        async with held(thread):
            await asyncio.sleep(0)
            with pytest.raises(CapacityError, match=f"{MAX_COMPILING} grammars wait"):
                await target.prepare(asked("b", WORDS))
        waiting[0].cancel()
        may_end.set()
        await asyncio.gather(*waiting[1:])
        assert await target.prepare(asked("b", WORDS))
