"""Requests outlive their target and their router: another one goes on as the lost one would.

Two routers share a real store and a target, and nothing else."""

from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex
from types import SimpleNamespace

import pytest

from slipstream.client import Client, SamplingParams
from slipstream.core.errors import Unavailable
from support.network.streams import logprobs_of, read, text_of, tokens_of
from support.services import fleet
from support.services.fleet import routed, running, target_worker
from support.state.redis_server import RedisServer

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11)
NUM_TOKENS = 120
LONG = 2000


@pytest.fixture(scope="module")
def plain(folder):
    client = Client.embedded(str(folder), "none", dtype="float32")
    return {
        sampling: client.generate("hello", max_tokens=NUM_TOKENS, sampling=sampling, logprobs=1)
        for sampling in (GREEDY, SAMPLED)
    }


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@asynccontextmanager
async def two(folder, server=None, **config):
    """Two routers over one target and, unless each keeps its own sessions, one store."""
    target = target_worker(folder)
    store = {} if server is None else {"store_url": server.url, "store_timeout_s": 2.0}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(target))
        make = lambda: stack.enter_async_context(routed([target], **{**store, **config}))  # noqa: E731
        yield SimpleNamespace(one=await make(), other=await make())


async def begin(client, request_id, num_tokens=10, **asked):
    stream = client.stream("hello", request_id=request_id, **asked)
    return stream, await read(stream, num_tokens)


async def rest(client, request_id, held, **asked):
    num_received = len(tokens_of(held))
    again = client.stream("hello", request_id=request_id, num_received=num_received, **asked)
    return await read(again)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_broken_stream_goes_on_at_another_router(folder, server, plain, sampling):
    name, asked = token_hex(8), {"max_tokens": NUM_TOKENS, "sampling": sampling, "logprobs": 1}
    async with two(folder, server) as routers:
        stream, held = await begin(routers.one, name, **asked)
        await stream.aclose()
        chunks = held + await rest(routers.other, name, held, **asked)
    assert (tokens_of(chunks), text_of(chunks)) == (plain[sampling].token_ids, plain[sampling].text)
    stats = chunks[-1].stats
    assert stats.num_output_tokens == NUM_TOKENS
    assert stats.continuity.num_resumed_tokens >= len(tokens_of(held))
    known, first = logprobs_of(held), stats.continuity.num_resumed_tokens
    unknown = (None,) * (first - len(known))
    assert logprobs_of(chunks) == known + unknown + plain[sampling].logprobs[first:]
    assert known == plain[sampling].logprobs[: len(known)]


async def test_a_router_that_knows_nothing_of_a_request_gives_the_same_rest(folder, plain):
    name, asked = token_hex(8), {"max_tokens": NUM_TOKENS, "sampling": SAMPLED}
    async with two(folder) as routers:
        stream, held = await begin(routers.one, name, **asked)
        await stream.aclose()
        chunks = held + await rest(routers.other, name, held, **asked)
    assert (tokens_of(chunks), text_of(chunks)) == (plain[SAMPLED].token_ids, plain[SAMPLED].text)


async def test_requests_outlive_the_store_and_are_kept_again_when_it_is_back(folder, server):
    name, asked = token_hex(8), {"max_tokens": LONG}
    async with two(folder, server, store_timeout_s=0.3) as routers:
        stream, held = await begin(routers.one, name, **asked)
        server.kill()
        while len(tokens_of(held)) < 60:
            held.append(await anext(stream))
        server.start()
        await fleet.eventually(lambda: _num_kept(server), lambda num: num > 60 * 4)
        await stream.aclose()
        num_held = len(tokens_of(held))
        more, chunks = await begin(routers.other, name, 80, num_received=num_held, **asked)
        await more.aclose()
        whole = await begin(routers.one, token_hex(8), len(tokens_of(held + chunks)), **asked)
        await whole[0].aclose()
    assert tokens_of(held + chunks) == tokens_of(whole[1])[: len(tokens_of(held + chunks))]


async def test_new_requests_run_unkept_or_are_refused_while_the_store_is_silent(folder, server):
    async with two(folder, server, store_timeout_s=0.3) as routers:
        server.stop_answering()
        result = await routers.one.generate("hello", max_tokens=5)
        assert not result.stats.continuity.is_kept
        assert result.stats.continuity.num_unkept_tokens == 5
        with pytest.raises(Unavailable, match="one-that-is-there can't be looked up"):
            await routers.one.session("one-that-is-there").generate("more", max_tokens=5)
        server.go_on()
    async with two(folder, server, store_timeout_s=0.3, store_down="refuse") as routers:
        server.stop_answering()
        with pytest.raises(Unavailable):
            await routers.one.generate("hello", max_tokens=5)
        server.go_on()


async def _num_kept(server):
    keys = [key for key in server.call("KEYS", "*") if key.endswith(b"tokens")]
    return sum(server.call("STRLEN", key) for key in keys)
