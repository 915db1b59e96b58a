"""The real pair as three processes says what one process says, alone and in a crowd."""

import asyncio
from pathlib import Path

import pytest

from slipstream.bench.questions import read_questions, select
from slipstream.client import AsyncClient, Client, Mode, SamplingParams, SpeculationOptions
from support.services.processes import Process

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

PROMPTS = Path(__file__).parents[3] / "slipstream" / "data" / "prompts.jsonl"
NUM_PROMPTS = 8
NUM_TOKENS = 16
# On a busy machine `auto` may find that plain rounds pay better, and draft nothing.
FORCED = SpeculationOptions(mode=Mode.FORCED)
OVERLAPPED = SpeculationOptions(mode=Mode.FORCED, overlap=True)
LAWS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.9, top_p=0.95, seed=3)}


@pytest.fixture(scope="module")
def prompts():
    questions = select(read_questions(PROMPTS), limit=NUM_PROMPTS)
    return [question.turns[0] for question in questions]


@pytest.fixture(scope="module")
def expected(prompts):
    with Client.embedded() as client:
        return {
            law: [
                client.generate(prompt, sampling=sampling, max_tokens=NUM_TOKENS).token_ids
                for prompt in prompts
            ]
            for law, sampling in LAWS.items()
        }


async def generated(address, prompts, sampling, *, at_once, speculation=FORCED):
    """Results in the order of the prompts, so many running at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(client, prompt):
        async with places:
            return await client.generate(
                prompt, sampling=sampling, speculation=speculation, max_tokens=NUM_TOKENS
            )

    async with AsyncClient(address) as client:
        return await asyncio.gather(*(one(client, prompt) for prompt in prompts))


# One test, so that one process of a parallel run loads the models, and loads them once.
async def test_three_processes_say_what_one_says_alone_and_in_a_crowd(prompts, expected):
    assert len(prompts) == NUM_PROMPTS
    with Process("slipstream.cli.main", "up", "--port", "0", "--traces", "none") as running:
        address = running.ready()
        for law, sampling in LAWS.items():
            for at_once in (1, 8):
                results = await generated(address, prompts, sampling, at_once=at_once)
                assert [at.token_ids for at in results] == expected[law], (law, at_once)
                # Without draft tokens that were right the comparison would show nothing.
                stats = [at.stats.speculation for at in results]
                assert sum(at.num_accepted_draft_tokens for at in stats) > NUM_PROMPTS / 2
                # In a crowd keys may come late; nothing else may be in the way.
                assert {why for at in stats for why in at.fallbacks} <= {"no keys"}
            results = await generated(address, prompts, sampling, at_once=2, speculation=OVERLAPPED)
            assert [at.token_ids for at in results] == expected[law], law
