"""Laws of learned texts in Redis: who reads which, what is kept, and that nothing is trusted."""

import asyncio
import logging
import zlib
from contextlib import asynccontextmanager

import pytest

from slipstream.core.draft.ngram import MAX_TOKEN_ID
from slipstream.core.errors import Unavailable
from slipstream.ngrams.scopes import LearnedScopes
from slipstream.state.factory import open_texts
from slipstream.state.options import StoreOptions
from slipstream.state.scripts import packed
from slipstream.state.text_exchange import MAX_TEXT_TOKENS, PAGE, TextExchange
from support.models.hand_clock import HandClock
from support.services.background import until
from support.state.redis_groups import cluster
from support.state.redis_server import redis_server

LIMIT_S = 20.0
TTL_S = 600.0
KEY = "slipstream:texts:scope"


@pytest.fixture
def server(session_server):
    session_server.call("FLUSHALL")
    return session_server


@asynccontextmanager
async def opened(url, count=1, *, num_kept=1000, ttl_s=TTL_S):
    options = StoreOptions(url, timeout_s=LIMIT_S)
    all_texts = [open_texts(options, num_kept=num_kept, ttl_s=ttl_s) for _ in range(count)]
    try:
        yield all_texts
    finally:
        for texts in all_texts:
            await texts.aclose()


def entry(text):
    return zlib.compress(packed(tuple(text)), 1)


async def test_a_router_reads_what_others_have_published_and_not_its_own(server):
    async with opened(server.url, 2) as (first, second):
        await first.publish("scope", (1, 2, MAX_TOKEN_ID))
        await second.publish("scope", (4, 5))
        await first.publish("other", (6,))
        page = await second.read("scope", "")
        assert page.texts == ((1, 2, MAX_TOKEN_ID),)
        assert not page.has_more
        assert (await first.read("scope", "")).texts == ((4, 5),)
        await first.publish("scope", (7,))
        assert (await second.read("scope", page.position)).texts == ((7,),)


async def test_a_router_that_comes_later_begins_with_the_newest_texts(server):
    async with opened(server.url, 2, num_kept=40) as (first, second):
        for number in range(60):
            await first.publish("scope", (number,))
        page = await second.read("scope", "")
        assert page.texts == tuple((number,) for number in range(20, 20 + PAGE))
        assert page.has_more
        rest = await second.read("scope", page.position)
        assert rest.texts == tuple((number,) for number in range(20 + PAGE, 60))
        assert not rest.has_more


async def test_nothing_there_is_nothing_read_and_what_comes_is(server):
    async with opened(server.url, 2) as (first, second):
        page = await second.read("scope", "")
        assert page.texts == ()
        await first.publish("scope", (1,))
        assert (await second.read("scope", page.position)).texts == ((1,),)


async def test_a_store_keeps_about_so_many_texts_for_a_time(server):
    async with opened(server.url, num_kept=10) as (texts,):
        for number in range(500):
            await texts.publish("scope", range(number, number + 1000))
        assert 10 <= server.call("XLEN", KEY) <= 110
        assert 0 < server.call("PTTL", KEY) <= TTL_S * 1000


async def test_what_is_too_old_is_not_read_and_goes_then_or_when_the_next_text_comes(server):
    async with opened(server.url) as (texts,):
        for work, num_left in ((texts.read("scope", ""), 0), (texts.publish("scope", (2,)), 1)):
            server.call("XADD", KEY, "1-1", "by", "x", "tokens", entry((1,)))
            page = await work
            assert page is None or page.texts == ()
            assert server.call("XLEN", KEY) == num_left
            server.call("DEL", KEY)


async def test_the_end_of_a_long_text_is_published(server):
    async with opened(server.url, 2) as (first, second):
        await first.publish("scope", range(MAX_TEXT_TOKENS + 5))
        ((text),) = (await second.read("scope", "")).texts
        assert text == tuple(range(5, MAX_TEXT_TOKENS + 5))


NO_TEXTS = [
    *(b"no such stream", b"", b"x" * (1 << 20), zlib.compress(b"abc")),
    *(zlib.compress(b"\0" * (64 << 20)), entry(()), entry((1, 2))[:-1]),
    *(entry((token,)) for token in (MAX_TOKEN_ID + 1, 0xFFFFFFFF)),
    entry([0] * (MAX_TEXT_TOKENS + 1)),
]


@pytest.mark.parametrize(
    "words", [*(("tokens", data) for data in NO_TEXTS), (), ("tokens", entry((1,)), "more", "y")]
)
async def test_an_entry_that_is_no_text_is_left_out_and_counted(server, words):
    server.call("XADD", KEY, "*", "by", "x", *words)
    server.call("XADD", KEY, "*", "by", "x", "tokens", entry((1, 2, 3)))
    async with opened(server.url) as (texts,):
        page = await texts.read("scope", "")
        assert page.texts == ((1, 2, 3),)
        assert page.num_invalid == 1


async def test_a_key_of_another_kind_is_an_error_in_a_sentence(server):
    server.call("SET", KEY, "a text")
    async with opened(server.url) as (texts,):
        for work in (texts.publish("scope", (1,)), texts.read("scope", "")):
            with pytest.raises(Unavailable, match="the store at "):
                await work


async def test_scopes_of_a_cluster_are_read_wherever_they_are():
    with cluster(2) as (url, _):
        async with opened(url, 2) as (first, second):
            for number in range(8):
                await first.publish(f"scope-{number}", (number,))
            for number in range(8):
                assert (await second.read(f"scope-{number}", "")).texts == ((number,),)


def test_without_a_store_there_is_nobody_to_share_with():
    assert open_texts(StoreOptions(), num_kept=1, ttl_s=1.0) is None


class Learning:
    """A memory of a router, and its exchange."""

    def __init__(self, texts):
        self.scopes = LearnedScopes(10_000, ttl_s=TTL_S, clock=HandClock())
        self.exchange = TextExchange(texts, self.scopes.learn, clock=HandClock(), every_s=0.01)

    def learn(self, scope, text):
        self.scopes.learn(scope, text)
        self.exchange.publish(scope, text)
        self.exchange.follow(scope, 1000)

    async def knows(self, scope, text):
        """Wait until what follows the text's first tokens is known."""
        self.exchange.follow(scope, 1000)
        await until(lambda: self.scopes.texts(scope).after(tuple(text[2::-1])) == (text[3], 3))


@asynccontextmanager
async def learning(url):
    async with opened(url) as (texts,):
        made = Learning(texts)
        work = asyncio.get_running_loop().create_task(made.exchange.run())
        try:
            yield made
        finally:
            work.cancel()
            await asyncio.wait({work})
            await made.exchange.aclose()


async def test_what_one_router_learns_another_one_knows_and_so_does_one_that_starts_later(server):
    texts = [tuple(range(start, start + 20)) for start in (100, 200)]
    async with learning(server.url) as first, learning(server.url) as second:
        first.learn("scope", texts[0])
        await second.knows("scope", texts[0])
        second.learn("scope", texts[1])
        await first.knows("scope", texts[1])
        assert second.scopes.texts("other").after((102, 101, 100)) is None
    async with learning(server.url) as later:
        for text in texts:
            await later.knows("scope", text)


async def test_learning_goes_on_while_the_store_is_away_and_is_shared_when_it_is_back(caplog):
    caplog.set_level(logging.INFO)
    text = tuple(range(20))
    with redis_server() as server:
        async with learning(server.url) as first, learning(server.url) as second:
            second.exchange.follow("scope", 1000)
            server.kill()
            first.learn("scope", text)
            assert first.scopes.texts("scope").after((2, 1, 0)) == (3, 3)
            await until(lambda: caplog.text.count("do not share") == 2)
            server.start()
            await second.knows("scope", text)
        assert caplog.text.count("do not share") == 2  # once by each router
