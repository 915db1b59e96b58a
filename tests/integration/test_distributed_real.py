"""The real pair as three processes says what one process says, alone and in a crowd."""

import asyncio
import json
from itertools import islice
from pathlib import Path

import pytest

from processes import Process
from slipstream.client import AsyncClient, Client, SamplingParams

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

PROMPTS = Path(__file__).parents[2] / "services" / "data" / "prompts.jsonl"
STYLES = ("", "Answer briefly: ")
NUM_PROMPTS = 40
NUM_TOKENS = 16
LAWS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, top_p=0.95, seed=3),
}


@pytest.fixture(scope="module")
def prompts():
    lines = [json.loads(line)["turns"][0] for line in PROMPTS.read_text().splitlines()]
    return list(islice((style + line for style in STYLES for line in lines), NUM_PROMPTS))


@pytest.fixture(scope="module")
def expected(prompts):
    """What the embedded engine says."""
    with Client.embedded() as client:
        return {
            law: [
                client.generate(prompt, sampling=sampling, max_tokens=NUM_TOKENS).token_ids
                for prompt in prompts
            ]
            for law, sampling in LAWS.items()
        }


@pytest.fixture(scope="module")
def address(expected):
    with Process("slipstream.cli.main", "up", "--port", "0") as running:
        yield running.ready()


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("law", LAWS)
async def test_three_processes_say_what_one_says(address, prompts, expected, law, at_once):
    places = asyncio.Semaphore(at_once)

    async def generated(client, prompt):
        async with places:
            return await client.generate(prompt, sampling=LAWS[law], max_tokens=NUM_TOKENS)

    async with AsyncClient(address) as client:
        results = await asyncio.gather(*(generated(client, prompt) for prompt in prompts))
    assert len(prompts) == NUM_PROMPTS
    assert [result.token_ids for result in results] == expected[law]
    # Without draft tokens that were right the comparison would show nothing.
    assert sum(at.stats.speculation.num_accepted_draft_tokens for at in results) > NUM_PROMPTS
    # In a crowd keys may come late; nothing else may be in the way.
    assert {why for at in results for why in at.stats.speculation.fallbacks} <= {"no keys"}
