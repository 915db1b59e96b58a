"""Clients over a tiny checkpoint: drafts and options, and what is special about asyncio."""

import asyncio
import gc

import pytest

from slipstream.client import AsyncClient, Client, Mode, SamplingParams, SpeculationOptions
from slipstream.core.errors import Cancelled, InvalidRequest
from support.network.bad_routers import Scripted, first_chunk, register
from support.services.background import served

SAMPLED = SamplingParams(temperature=1.0, seed=4)


def test_a_stop_string_in_one_turn_does_not_spoil_the_next(embedded):
    with embedded.session() as session:
        whole = embedded.generate("hello", max_tokens=30, sampling=SAMPLED)
        stop = [whole.text[4:6]]
        cut = session.generate("hello", max_tokens=30, stop=stop, sampling=SAMPLED)
        session.generate("more", max_tokens=5)
        again = session.generate("and", max_tokens=5)
    assert again.stats.num_cached_tokens > cut.stats.num_prompt_tokens


def test_an_engine_without_a_draft_decodes_plainly_and_says_no_to_more(folder, embedded):
    with Client.embedded(str(folder), "none", dtype="float32") as client:
        result = client.generate("hello", max_tokens=10)
        assert result.token_ids == embedded.generate("hello", max_tokens=10).token_ids
        with pytest.raises(InvalidRequest, match="no draft"):
            client.generate("hello", speculation=SpeculationOptions(mode=Mode.FORCED))


NO_OPTIONS = [{"numerics": "exactish"}, {"threads": 0}, {"dtype": "int3"}, {"device": "abacus"}]
NO_OPTIONS += [{"draft": draft} for draft in ("", "glide", "magic", "vanilla:")]


@pytest.mark.parametrize("options", NO_OPTIONS)
def test_drafts_and_engine_options_that_do_not_exist_are_refused(folder, options):
    with pytest.raises(InvalidRequest):
        Client.embedded(str(folder), **{"draft": "none", "dtype": "float32", **options})


def test_an_answer_that_was_kept_does_not_know_how_its_tokens_came_about(embedded):
    asked = {"max_tokens": 10, "request_id": "kept"}
    first = embedded.generate("hello", **asked)
    again = embedded.generate("hello", **asked, with_origins=True, logprobs=1)
    assert again.stats.continuity.num_resumed_tokens == 10
    assert again.token_ids == first.token_ids
    assert again.origins == again.logprobs == (None,) * 10


@pytest.fixture(params=["embedded", "remote"])
async def async_client(request, folder, router):
    if request.param == "remote":
        client = AsyncClient(router.address)
    else:
        client = AsyncClient.embedded(str(folder), f"vanilla:{folder}", dtype="float32")
    async with client:
        yield client


async def test_a_stream_that_is_dropped_frees_its_session(async_client):
    async with async_client.session() as session:
        stream = session.stream("hello", max_tokens=40)
        await anext(stream)
        del stream
        gc.collect()
        assert (await session.generate("later", max_tokens=3)).token_ids


async def test_requests_that_are_cancelled_leave_the_others_as_they_are(async_client):
    asked = {"max_tokens": 40, "sampling": SAMPLED}
    expected = await async_client.generate("hello", **asked)
    kept = [asyncio.ensure_future(async_client.generate("hello", **asked)) for _ in range(3)]
    for steps in range(12):
        stream = async_client.stream("other " * (steps % 4 + 1), max_tokens=40)
        reading = asyncio.ensure_future(anext(stream))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
    for request in kept:
        assert (await request).token_ids == expected.token_ids


@pytest.mark.parametrize("is_closed", [True, False], ids=["client", "task"])
async def test_a_client_that_is_closed_or_a_task_that_is_cancelled_frees_the_engines(is_closed):
    silent = Scripted(first_chunk(), hangs=True)
    with served(register(silent)) as address:
        async with AsyncClient(address) as client:
            stream = client.stream("hello")
            await anext(stream)
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            if is_closed:
                await client.aclose()
            else:
                reading.cancel()
            with pytest.raises((Cancelled, asyncio.CancelledError)) as raised:
                await reading
            assert ("client was closed" in str(raised.value)) is is_closed
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
