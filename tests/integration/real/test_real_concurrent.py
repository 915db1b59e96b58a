"""Requests at once on a real model with the shipped draft have the tokens they have alone."""

import asyncio
from itertools import cycle, islice
from pathlib import Path

import pytest

from slipstream.bench.questions import read_questions
from slipstream.client import AsyncClient, Client, Mode, SamplingParams, SpeculationOptions

pytestmark = pytest.mark.real

PROMPTS = Path(__file__).parents[3] / "slipstream" / "data" / "prompts.jsonl"
LAWS = (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, seed=3))
MODES = (Mode.AUTO, Mode.FORCED, Mode.OFF)


def requests(count):
    """Questions of all kinds and lengths, greedy and sampled, with and without drafts."""
    questions = read_questions(PROMPTS)[::2]
    kinds = zip(cycle(questions), cycle(LAWS), cycle(MODES), strict=False)
    for question, law, mode in islice(kinds, count):
        yield question.turns[0], law, SpeculationOptions(mode=mode)


async def test_requests_at_once_have_the_tokens_they_have_alone(real_model):
    async with AsyncClient.embedded(real_model) as client:
        together = await asyncio.gather(
            *(
                client.generate(prompt, max_tokens=24, sampling=law, speculation=options)
                for prompt, law, options in requests(6)
            )
        )
    with Client.embedded(real_model, "none") as client:
        asked = {"max_tokens": 24}
        alone = [client.generate(at, **asked, sampling=law) for at, law, _ in requests(6)]
    assert [at.token_ids for at in together] == [at.token_ids for at in alone]
    assert sum(at.stats.speculation.num_draft_tokens for at in together) > 0
