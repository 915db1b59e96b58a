"""Learning from requests at real routers: whose texts are kept for whom, and for how long."""

import asyncio
import zlib
from contextlib import aclosing, asynccontextmanager

import pytest

from slipstream.client import AsyncClient, SamplingParams
from slipstream.core.draft.ngram_sources import LATEST
from slipstream.core.errors import InvalidRequest
from slipstream.options import build
from slipstream.state.scripts import packed
from slipstream.telemetry import catalog
from slipstream_router.config import RouterConfig
from support.network.key_files import key, write_keys
from support.services import fleet
from support.services.fleet import eventually, routed
from support.state.redis_server import redis_server

ALICE, BOB = "slip_alice-token", "slip_bob-token"
PROMPT = "the quick brown fox"
NUM_TOKENS = 40


DRAWN = {"raw": True, "max_tokens": NUM_TOKENS, "sampling": SamplingParams(temperature=1.0, seed=3)}
"""A text that hardly repeats itself."""


@pytest.fixture
def key_file(tmp_path):
    return write_keys(tmp_path / "keys.toml", key("alice", ALICE), key("bob", BOB))


class Sampled:
    """Instruments that keep the last value of each metric."""

    def __init__(self, router):
        self._values = {}
        router.sample(self)

    def put(self, metric, value, attributes=None):
        self._values[metric.name, *sorted((attributes or {}).values())] = value

    total = put

    def __call__(self, metric, *attributes):
        return self._values[metric.name, *attributes]


def learned(client, *attributes):
    """How many texts a client's router has learned from a source."""
    return Sampled(client.router)(catalog.LEARNED_TEXTS, *attributes)


def memory_of(client, owner=""):
    """What requests of an owner may copy from at a client's router."""
    router = client.router
    ((_, placed),) = router._fleet.models().items()
    return router._learner.memory(placed.model, owner)


def proposed(memory, tokens, start):
    """How many tokens of a text, from a position on, are proposed as they are."""
    ends = [tuple(reversed(tokens[max(at - LATEST, 0) : at])) for at in range(start, len(tokens))]
    found = [memory.after(end) for end in ends]
    pairs = zip(found, tokens[start:], strict=True)
    return sum(at is not None and at[0] == token for at, token in pairs)


async def text_of(client, prompt=PROMPT, **options):
    """Prompt and output of a request, and where the output begins."""
    prompt_ids = await client.tokenize(prompt, raw=True)
    result = await client.generate(prompt, raw=True, max_tokens=NUM_TOKENS, **options)
    return (*prompt_ids, *result.token_ids), len(prompt_ids)


async def test_what_a_request_said_is_proposed_to_the_next_one_which_gets_the_same_tokens(served):
    async with routed([served], learn="model") as client:
        tokens, start = await text_of(client)
        assert await text_of(client) == (tokens, start)
        assert learned(client, "request") == 2
        assert proposed(memory_of(client), tokens, start) == NUM_TOKENS
        num_tokens = Sampled(client.router)(catalog.LEARNED_TOKENS)
        assert num_tokens == len(tokens) + 1


async def test_a_request_that_comes_again_is_drafted_from_what_was_learned(served):
    async with routed([served], learn="model") as client:
        first, again = [await client.generate(PROMPT, **DRAWN) for _ in range(2)]
        assert again.token_ids == first.token_ids
        assert first.stats.speculation.num_learned_tokens == 0
        assert again.stats.speculation.num_accepted_learned_tokens > NUM_TOKENS // 4


async def test_a_request_is_never_drafted_from_what_another_key_asked(served, key_file):
    async with two(served, key_file, learn="key") as (alice, bob):
        for _ in range(2):
            alices = await alice.generate(PROMPT, **DRAWN)
        assert alices.stats.speculation.num_learned_tokens > 0
        bobs = await bob.generate(PROMPT, **DRAWN)
        assert bobs.token_ids == alices.token_ids
        assert bobs.stats.speculation.num_learned_tokens == 0


async def test_nothing_is_learned_unless_it_is_asked_for(served):
    async with routed([served]) as client:
        await text_of(client)
        assert learned(client, "request") == 0
        assert Sampled(client.router)(catalog.LEARNED_TOKENS) == 0
        assert memory_of(client) is None


async def test_a_request_that_does_not_end_well_is_not_learned(served):
    async with routed([served], learn="model") as client:
        async with aclosing(client.stream(PROMPT, max_tokens=3000)) as chunks:
            await anext(chunks)
        with pytest.raises(InvalidRequest):
            await client.generate(PROMPT, max_tokens=1 << 20)
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        assert learned(client, "request") == 0


def soon(look, holds):
    """Wait until that holds of what is seen."""

    async def seen():
        return look()

    return eventually(seen, holds)


@asynccontextmanager
async def two(served, key_file, **config):
    """Alice and Bob at one router."""
    async with (
        routed([served], token=ALICE, key_file=key_file, **config) as alice,
        AsyncClient(alice.address, token=BOB, retries=False) as bob,
    ):
        bob.router = alice.router
        yield alice, bob


async def test_no_text_of_one_key_is_proposed_to_another(served, key_file):
    async with two(served, key_file, learn="key") as (alice, bob):
        tokens, start = await text_of(alice)
        assert proposed(memory_of(alice, "alice"), tokens, start) == NUM_TOKENS
        for owner in ("bob", "", "nobody"):
            assert proposed(memory_of(bob, owner), tokens, 0) == 0
        others, start = await text_of(bob, "jumps over")
        assert proposed(memory_of(bob, "bob"), others, start) == NUM_TOKENS
        assert memory_of(alice, "alice").num_tokens == len(tokens) + 1


async def test_texts_of_all_keys_are_proposed_to_all_where_that_is_asked_for(served, key_file):
    async with two(served, key_file, learn="model") as (alice, bob):
        tokens, start = await text_of(alice)
        assert proposed(memory_of(bob, "bob"), tokens, start) == NUM_TOKENS


async def test_learning_by_key_needs_keys():
    with pytest.raises(InvalidRequest, match="there is no key_file, so all callers would share"):
        build(RouterConfig, targets=("a:1",), learn="key")


async def test_a_memory_full_of_garbage_changes_no_token(served):
    async with routed([served]) as client:
        expected = await text_of(client)
    async with routed([served], learn="model") as client:
        tokens, _ = expected
        memory = memory_of(client)
        for at in range(len(tokens) - 3):  # behind every n-gram stands the wrong token
            memory.learn((*tokens[at : at + 3], (tokens[at + 3] + 1) % 250, 1, 2, 3))
        assert await text_of(client) == expected


async def test_routers_share_what_they_learn_and_come_back_with_it(served):
    with redis_server() as server:
        store = {"learn": "model", "store_url": server.url, "store_timeout_s": 2.0}
        async with routed([served], **store) as first, routed([served], **store) as second:
            tokens, start = await text_of(first)
            await knows(second, tokens, start)
            assert learned(second, "replica") == 1
            assert learned(second, "request") == learned(first, "replica") == 0
        async with routed([served], **store) as again:
            await knows(again, tokens, start)
        names = [name.decode() for name in server.call("KEYS", "*:texts:*")]
    assert len(names) == 1
    assert "tiny" not in names[0]


async def test_what_others_write_into_the_store_changes_no_token(served):
    with redis_server() as server:
        store = {"learn": "model", "store_url": server.url, "store_timeout_s": 2.0}
        async with routed([served], **store) as client:
            tokens, start = await text_of(client)
            (name,) = await soon(lambda: server.call("KEYS", "*:texts:*"), lambda at: len(at) == 1)
            bad = [(*tokens[at : at + 3], 259 + at) for at in range(len(tokens) - 3)]
            for text in bad:
                data = zlib.compress(packed(text))
                server.call("XADD", name, "*", "by", "x", "tokens", data)
            server.call("XADD", name, "*", "by", "x", "tokens", b"no text")
            lost = lambda: Sampled(client.router)(catalog.LEARNED_LOST, "invalid")  # noqa: E731
            await soon(lost, lambda count: count == len(bad) + 1)
            assert await text_of(client) == (tokens, start)
            assert learned(client, "replica") == 0


async def test_a_store_that_hangs_delays_no_request_and_learning_goes_on(served):
    with redis_server() as server:
        store = {"learn": "model", "store_url": server.url, "store_timeout_s": 0.1}
        async with routed([served], **store) as client:
            await text_of(client)
            server.stop_answering()
            tokens, start = await asyncio.wait_for(text_of(client, "jumps"), fleet.LIMIT_S)
            assert proposed(memory_of(client), tokens, start) == NUM_TOKENS
            server.go_on()


async def knows(client, tokens, start):
    """Wait until a client's router has a text that it did not run."""
    known = lambda: proposed(memory_of(client), tokens, start)  # noqa: E731
    await soon(known, lambda count: count == NUM_TOKENS)
