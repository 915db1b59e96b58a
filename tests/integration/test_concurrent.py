"""Many requests at once on embedded engines: the tokens are those that each has alone."""

import asyncio

import pytest

from slipstream.client import AsyncClient, Client, Mode, SamplingParams, SpeculationOptions
from support.models import tiny_checkpoint

PROMPTS = ["a", "hello", "x" * 60, "what is it that flows", "aa bb aa bb aa bb aa", "y" * 85]
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
LAWS = [SamplingParams(), SAMPLED]
FORCED = SpeculationOptions(mode=Mode.FORCED)
OFF = SpeculationOptions(mode=Mode.OFF)
MODES = (FORCED, OFF, SpeculationOptions())
REQUESTS = [
    {"prompt": prompt, "max_tokens": 30, "sampling": law, "speculation": MODES[at % 3]}
    for first in (0, 1)
    for at, prompt in enumerate(PROMPTS)
    for law in [LAWS[(at + first) % 2]]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.save_checkpoint(tmp_path_factory.mktemp("target") / "tiny")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft", ["vanilla", "ngram"])
async def test_requests_at_once_have_the_tokens_they_have_alone(folder, dtype, draft):
    draft = f"vanilla:{folder}" if draft == "vanilla" else draft
    with Client.embedded(str(folder), draft, dtype=dtype) as client:
        alone = [client.generate(**asked) for asked in REQUESTS]
    async with AsyncClient.embedded(str(folder), draft, dtype=dtype) as client:
        together = await asyncio.gather(*(client.generate(**asked) for asked in REQUESTS))
    assert [at.token_ids for at in together] == [at.token_ids for at in alone]
    assert [at.text for at in together] == [at.text for at in alone]


async def test_conversations_at_once_are_those_that_each_has_alone(folder):
    turns = ["hello", "more", "and then"]

    async def talk(client, number):
        law = SamplingParams(temperature=0.8, seed=number)
        async with client.session() as session:
            return [
                (await session.generate(turn * (1 + number % 3), max_tokens=8, sampling=law))
                for turn in turns
            ]

    async with AsyncClient.embedded(str(folder), f"vanilla:{folder}", dtype="float32") as client:
        together = await asyncio.gather(*(talk(client, number) for number in range(6)))
        for number, turns_together in enumerate(together):
            alone = await talk(client, number)
            assert [at.token_ids for at in turns_together] == [at.token_ids for at in alone]
            assert all(at.stats.num_cached_tokens for at in turns_together[1:])


async def test_requests_that_are_cancelled_leave_the_others_as_they_are(folder):
    async with AsyncClient.embedded(str(folder), f"vanilla:{folder}", dtype="float32") as client:
        expected = await client.generate("hello", max_tokens=40, sampling=SAMPLED)
        kept = [
            asyncio.ensure_future(client.generate("hello", max_tokens=40, sampling=SAMPLED))
            for _ in range(3)
        ]
        for steps in range(12):
            stream = client.stream("other " * (steps % 4 + 1), max_tokens=40)
            reading = asyncio.ensure_future(anext(stream))
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait({reading})
        for request in kept:
            assert (await request).token_ids == expected.token_ids
