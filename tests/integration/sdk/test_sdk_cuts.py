"""Connections to a real router that are cut anywhere: nothing of an answer is lost or doubled."""

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager

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


def said(chunks):
    """Text and tokens, the last chunk having said why they end."""
    assert chunks[-1].finish_reason is not None
    assert [chunk.prompt is None for chunk in chunks] == [False] + [True] * (len(chunks) - 1)
    text = "".join(chunk.text for chunk in chunks)
    return text, tuple(token for chunk in chunks for token in chunk.token_ids)


@pytest.mark.parametrize("is_blocking", [False, True], ids=["asyncio", "threads"])
@pytest.mark.parametrize("law", LAWS)
async def test_an_answer_that_is_cut_anywhere_is_whole(model, law, is_blocking):
    options = {"max_tokens": LENGTH, "sampling": LAWS[law]}

    async def chunks_of(client):
        if is_blocking:
            return await asyncio.to_thread(lambda: list(client.stream("once upon", **options)))
        return [chunk async for chunk in client.stream("once upon", **options)]

    async with cut(model) as (direct, way), AsyncExitStack() as stack:
        expected = await direct.generate("once upon", **options)
        client = (Client if is_blocking else AsyncClient)(way.address)
        stack.push_async_callback(closed, client)
        for seed in range(6):
            way.cuts(places(seed, 4))
            assert said(await chunks_of(client)) == (expected.text, expected.token_ids)
        way.cuts(places(0, 4))
        ask = lambda: client.generate("once upon", **options)  # noqa: E731
        result = await (asyncio.to_thread(ask) if is_blocking else ask())
        assert result.token_ids == expected.token_ids
        assert way.num_cuts > 6


async def closed(client):
    if isinstance(client, AsyncClient):
        await client.aclose()
    else:
        client.close()


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
