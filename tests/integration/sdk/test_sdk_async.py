"""The same laws for asyncio: the surface of `AsyncClient`, embedded and over gRPC."""

import asyncio
import gc

import pytest

from slipstream.client import AsyncClient, Client, SamplingParams
from slipstream.core.errors import (
    Cancelled,
    SessionClosed,
)
from support.network.bad_routers import Scripted, first_chunk, register
from support.services.background import served

SAMPLED = SamplingParams(temperature=1.0, seed=4)


@pytest.fixture(params=["embedded", "remote"])
async def client(request, folder, router):
    if request.param == "remote":
        client = AsyncClient(router.address)
    else:
        client = AsyncClient.embedded(str(folder), f"vanilla:{folder}", dtype="float32")
    async with client:
        yield client


async def test_requests_at_once_have_the_tokens_they_have_alone(client, embedded):
    prompts = [f"question {number}" for number in range(6)]
    answers = await asyncio.gather(
        *(client.generate(prompt, max_tokens=20, sampling=SAMPLED) for prompt in prompts)
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = embedded.generate(prompt, max_tokens=20, sampling=SAMPLED)
        assert answer.token_ids == alone.token_ids


async def test_a_stream_that_is_dropped_frees_its_session(client):
    async with client.session() as session:
        stream = session.stream("hello", max_tokens=40)
        await anext(stream)
        del stream
        gc.collect()
        assert (await session.generate("later", max_tokens=3)).token_ids


async def test_a_loop_that_is_left_frees_its_session(client):
    async with client.session() as session:
        async with session.stream("hello", max_tokens=40) as stream:
            async for _ in stream:
                break
        assert (await session.generate("later", max_tokens=3)).token_ids


async def test_a_session_can_be_closed_in_the_middle_of_a_turn(client):
    session = client.session()
    stream = session.stream("hello", max_tokens=40)
    await anext(stream)
    await session.aclose()
    assert [chunk async for chunk in stream] == []
    with pytest.raises(SessionClosed, match=session.session_id):
        await session.generate("more")


async def test_a_closed_client_refuses_everything(client):
    session = client.session()
    await client.aclose()
    for call in (
        client.generate("hello"),
        client.tokenize("hello"),
        client.model_info(),
        session.generate("hello"),
        anext(client.stream("hello")),
    ):
        with pytest.raises(SessionClosed, match="the client is closed"):
            await call
    await session.aclose()


async def test_a_task_that_is_cancelled_frees_the_engines():
    silent = Scripted(first_chunk(), hangs=True)
    with served(register(silent)) as address:
        async with AsyncClient(address) as client:
            stream = client.stream("hello")
            await anext(stream)
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await asyncio.to_thread(silent.cancelled.wait, 10)


async def test_a_request_ends_with_its_client():
    silent = Scripted(first_chunk(), hangs=True)
    with served(register(silent)) as address:
        client = AsyncClient(address)
        stream = client.stream("hello")
        await anext(stream)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(Cancelled, match="client was closed"):
            await reading
        assert await asyncio.to_thread(silent.cancelled.wait, 10)


@pytest.mark.parametrize("place", ["embedded", "remote"])
async def test_a_client_for_threads_works_in_a_running_loop_as_notebooks(embedded, router, place):
    with Client(router.address) as remote:
        client = embedded if place == "embedded" else remote
        text = client.generate("hello", max_tokens=20).text
        assert "".join(chunk.text for chunk in client.stream("hello", max_tokens=20)) == text
        with client.session() as session:
            assert session.generate("hello", max_tokens=5).token_ids
            next(session.stream("more", max_tokens=20))
            await asyncio.sleep(0)
        assert client.tokenize("hello")
