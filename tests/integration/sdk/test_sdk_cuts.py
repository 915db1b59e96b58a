"""Connections to a real router that are cut anywhere: nothing of an answer is lost or doubled."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from slipstream.client import AsyncClient, Client, SamplingParams
from support.network.relay import Relay
from support.services.fleet import routed, running, save_models, target_worker

LENGTH = 40
LAWS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0, seed=7)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@asynccontextmanager
async def cut(model):
    """A client of a router, and a way there that can be cut."""
    worker = target_worker(model)
    async with running(worker), routed([worker]) as client, Relay(client.address) as way:
        yield client, way


def places(seed, num):
    """Where to cut: in what is said before anything else, in tokens, in the end of an answer."""
    draws = random.Random(seed)
    return [draws.choice([draws.randint(0, 150), draws.randint(150, 2500)]) for _ in range(num)]


def whole(client, options):
    return list(client.stream("once upon", **options))


def said(chunks):
    """Text and tokens, the last chunk having said why they end."""
    assert chunks[-1].finish_reason is not None
    assert [chunk.prompt is None for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    text = "".join(chunk.text for chunk in chunks)
    return text, tuple(token for chunk in chunks for token in chunk.token_ids)


@pytest.mark.parametrize("law", LAWS)
async def test_a_stream_that_is_cut_anywhere_is_whole(model, law):
    options = {"max_tokens": LENGTH, "sampling": LAWS[law]}
    async with cut(model) as (direct, way), AsyncClient(way.address) as client:
        expected = await direct.generate("once upon", **options)
        for seed in range(6):
            way.cuts(places(seed, 4))
            chunks = [chunk async for chunk in client.stream("once upon", **options)]
            assert said(chunks) == (expected.text, expected.token_ids)
        assert way.num_cuts > 6


@pytest.mark.parametrize("law", LAWS)
async def test_a_stream_for_threads_that_is_cut_anywhere_is_whole(model, law):
    options = {"max_tokens": LENGTH, "sampling": LAWS[law]}
    async with cut(model) as (direct, way):
        expected = await direct.generate("once upon", **options)
        with Client(way.address) as client:
            for seed in range(6):
                way.cuts(places(seed, 4))
                chunks = await asyncio.to_thread(whole, client, options)
                assert said(chunks) == (expected.text, expected.token_ids)
            way.cuts(places(0, 4))
            result = await asyncio.to_thread(lambda: client.generate("once upon", **options))
        assert result.token_ids == expected.token_ids
        assert way.num_cuts > 6


async def test_the_turns_of_a_session_that_is_cut_anywhere_are_whole(model):
    prompts = ["once upon", "a time", "there was"]
    options = {"max_tokens": LENGTH, "sampling": LAWS["sampled"]}

    async def conversation(client):
        async with client.session() as session:
            return [(await session.generate(text, **options)).token_ids for text in prompts]

    async with cut(model) as (direct, way), AsyncClient(way.address) as client:
        expected = await conversation(direct)
        for seed in range(3):
            way.cuts(places(seed, 9))
            assert await conversation(client) == expected
        assert way.num_cuts > 6
