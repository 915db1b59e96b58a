"""Laws of the exchange of texts: in the background, bounded, and never worth an error."""

import asyncio
from contextlib import asynccontextmanager

from slipstream.core.errors import Unavailable
from slipstream.state import text_exchange
from slipstream.state.text_exchange import IN_USE_S, TextExchange, TextPage
from support.models.hand_clock import HandClock
from support.services.background import until

TEXT = (1, 2, 3)


class Shelf:
    """Where texts are exchanged, as a test has it: pages by scope. It can be broken."""

    def __init__(self):
        self.published, self.read_scopes, self.pages = [], [], {}
        self.is_broken = self.is_closed = False

    async def publish(self, scope, text):
        await self._answer()
        self.published.append((scope, text))

    async def read(self, scope, position):
        await self._answer()
        self.read_scopes.append((scope, position))
        pages = self.pages.get(scope, [])
        return pages.pop(0) if pages else TextPage((), position, False, 0)

    async def aclose(self):
        self.is_closed = True

    async def _answer(self):
        await asyncio.sleep(0)
        if self.is_broken:
            raise Unavailable("the store is on fire")


@asynccontextmanager
async def exchanging(shelf, clock=None, every_s=0.01):
    learned = []
    learn = lambda scope, text: learned.append((scope, text))  # noqa: E731
    exchange = TextExchange(shelf, learn, clock=clock or HandClock(), every_s=every_s)
    running = asyncio.create_task(exchange.run())
    yield exchange, learned
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_texts_of_this_router_are_published_and_those_of_others_learned_page_by_page():
    shelf = Shelf()
    shelf.pages["a"] = [TextPage((TEXT, (4,)), "1-0", True, 1), TextPage(((5,),), "2-0", False, 0)]
    async with exchanging(shelf) as (exchange, learned):
        exchange.publish("a", TEXT)
        exchange.follow("a", 10)
        await until(lambda: len(learned) == 3 and shelf.published)
        await until(lambda: ("a", "2-0") in shelf.read_scopes)
        assert learned == [("a", TEXT), ("a", (4,)), ("a", (5,))]
        assert shelf.published == [("a", TEXT)]
        assert shelf.read_scopes[:2] == [("a", ""), ("a", "1-0")]
        assert exchange.num_invalid == 1


async def test_a_text_with_tokens_beyond_the_vocabulary_is_left_out_and_counted():
    shelf = Shelf()
    shelf.pages["a"] = [TextPage(((1, 10), (9,), (), (99, 1)), "1-0", False, 0)]
    async with exchanging(shelf) as (exchange, learned):
        exchange.follow("a", 10)
        await until(lambda: exchange.num_invalid == 2)
        assert learned == [("a", (9,)), ("a", ())]


async def test_a_scope_that_is_new_is_read_at_once():
    shelf = Shelf()
    async with exchanging(shelf, every_s=3600.0) as (exchange, _):
        await asyncio.sleep(0.01)
        exchange.follow("a", 10)
        await until(lambda: shelf.read_scopes)


async def test_a_scope_that_is_not_used_any_more_is_not_read_until_it_is():
    shelf, clock = Shelf(), HandClock()
    async with exchanging(shelf, clock) as (exchange, _):
        exchange.follow("a", 10)
        await until(lambda: shelf.read_scopes)
        clock.now += IN_USE_S
        await asyncio.sleep(0.03)
        shelf.read_scopes.clear()
        await asyncio.sleep(0.05)
        assert not shelf.read_scopes
        exchange.follow("a", 10)
        await until(lambda: shelf.read_scopes)


async def test_a_store_that_is_down_is_logged_once_and_what_waits_is_bounded(caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(text_exchange, "MAX_WAITING", 4)
    shelf = Shelf()
    shelf.is_broken = True
    async with exchanging(shelf) as (exchange, _):
        for number in range(10):
            exchange.publish("a", (number,))
        exchange.follow("a", 10)
        await asyncio.sleep(0.1)
        assert [at.levelname for at in caplog.records] == ["WARNING"]
        assert "routers do not share what they learn: the store is on fire" in caplog.text
        shelf.is_broken = False
        await until(lambda: "again" in caplog.text)
        assert shelf.published == [("a", (number,)) for number in range(6, 10)]
        assert exchange.num_dropped == 6


async def test_what_waits_is_published_at_the_end_if_the_store_answers():
    for is_broken, published in ((False, [("a", TEXT)]), (True, [])):
        shelf = Shelf()
        shelf.is_broken = is_broken
        exchange = TextExchange(shelf, print, clock=HandClock())
        exchange.publish("a", TEXT)
        await exchange.aclose()
        assert shelf.published == published
        assert shelf.is_closed


async def test_scopes_that_are_followed_are_bounded(monkeypatch):
    monkeypatch.setattr(text_exchange, "MAX_SCOPES", 2)
    shelf = Shelf()
    exchange = TextExchange(shelf, print, clock=HandClock())
    for scope in ("a", "b", "a", "c"):
        exchange.follow(scope, 10)
    running = asyncio.create_task(exchange.run())
    await until(lambda: len(shelf.read_scopes) >= 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {scope for scope, _ in shelf.read_scopes} == {"a", "c"}
