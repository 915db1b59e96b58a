"""Laws of requests within the limits of their key."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from slipstream.core.errors import LimitExceeded
from slipstream.core.request.request import Ask, Generation, SessionRef
from slipstream.core.request.results import Chunk, PromptInfo
from slipstream.state.access import Entry
from slipstream.state.quotas import MemoryQuotas, QuotaLimits
from slipstream_router.limits import BATCH_TOKENS, LONGEST_S, admitted, num_tokens


class Counted(MemoryQuotas):
    """Quotas in memory, and what was asked of them."""

    def __init__(self):
        super().__init__(lambda: 0.0)
        self.calls = []

    async def take(self, ticket, *, ttl_s):
        self.calls.append(("take", ttl_s))
        await super().take(ticket, ttl_s=ttl_s)

    async def charge(self, ticket, num_tokens, *, ttl_s):
        self.calls.append(("charge", num_tokens, ttl_s))
        await super().charge(ticket, num_tokens, ttl_s=ttl_s)

    async def give_back(self, ticket, num_tokens):
        self.calls.append(("give back", num_tokens))
        await super().give_back(ticket, num_tokens)


ALICE = Entry("alice", limits=QuotaLimits(tokens_per_minute=1000, max_concurrent=1))
UNNAMED = Generation("x")
NAMED = Generation("x", Ask(request_id="r"))


async def chunks(*sizes, num_prompt_tokens=0):
    for number, size in enumerate(sizes):
        info = PromptInfo("r", "m", 0, num_prompt_tokens) if number == 0 else None
        yield Chunk("", tuple(range(size)), prompt=info)


async def within(limits, given, key=ALICE, *, asked=UNNAMED, remaining=lambda: None):
    async with admitted(limits, key, asked, remaining) as charge, aclosing(given):
        async for chunk in given:
            await charge(num_tokens(chunk))
            yield chunk


async def test_tokens_are_counted_in_lots_and_the_rest_at_the_end():
    quotas = Counted()
    given = chunks(*[7] * 30, num_prompt_tokens=100)
    assert len([chunk async for chunk in within(quotas, given)]) == 30
    kinds = [call[0] for call in quotas.calls]
    assert kinds == ["take", "charge", "charge", "charge", "give back"]
    amounts = [call[1] for call in quotas.calls[1:]]
    assert sum(amounts) == 100 + 7 * 30
    assert amounts[0] == 107
    assert all(BATCH_TOKENS <= amount < BATCH_TOKENS + 7 for amount in amounts[1:3])


@pytest.mark.parametrize(("left_s", "ttl_s"), [(None, LONGEST_S), (1e9, LONGEST_S), (45.0, 45.0)])
async def test_a_request_counts_for_as_long_as_its_caller_waits_but_not_for_ever(left_s, ttl_s):
    quotas = Counted()
    async for _ in within(quotas, chunks(70), remaining=lambda: left_s):
        pass
    assert quotas.calls[:2] == [("take", ttl_s), ("charge", 70, ttl_s)]


async def test_who_is_refused_begins_nothing():
    limits, begun = MemoryQuotas(lambda: 0.0), []

    async def beginning():
        begun.append(True)
        yield Chunk("", (1,))

    async with aclosing(within(limits, chunks(1, 1))) as running:
        await anext(running)
        with pytest.raises(LimitExceeded, match="1 requests running at once"):
            await anext(within(limits, beginning()))
    assert begun == []
    assert len([chunk async for chunk in within(limits, beginning())]) == 1


@pytest.mark.parametrize("ending", ["closed", "failed", "cancelled"])
async def test_a_request_that_breaks_off_is_given_back_with_what_it_used(ending):
    quotas = Counted()

    async def breaking():
        yield Chunk("", (1, 2))
        if ending == "failed":
            raise ZeroDivisionError
        await asyncio.Event().wait()

    async def run():
        async with aclosing(within(quotas, breaking())) as given:
            async for _ in given:
                reached.set()
                if ending == "closed":
                    return

    reached = asyncio.Event()
    running = asyncio.create_task(run())
    await reached.wait()
    if ending == "cancelled":
        running.cancel()
    await asyncio.wait({running})
    assert quotas.calls[-1] == ("give back", 2)
    async for _ in within(quotas, chunks(1)):
        pass


async def test_a_request_that_is_cancelled_while_it_is_let_in_is_given_back():
    class Slow(Counted):
        async def take(self, ticket, *, ttl_s):
            await super().take(ticket, ttl_s=ttl_s)
            counted.set()
            await asyncio.Event().wait()

    quotas, counted = Slow(), asyncio.Event()
    running = asyncio.create_task(anext(within(quotas, chunks(1))))
    await counted.wait()
    running.cancel()
    await asyncio.wait({running})
    assert quotas.calls[-1] == ("give back", 0)


@pytest.mark.parametrize(
    "other",
    [
        replace(NAMED, session=SessionRef("one", create=True)),
        replace(NAMED, prompt="other"),
        replace(NAMED, ask=replace(NAMED.ask, max_tokens=5)),
    ],
)
async def test_another_request_under_the_id_of_one_that_runs_is_counted_by_itself(other):
    limits = MemoryQuotas(lambda: 0.0)
    async with aclosing(within(limits, chunks(1, 1), asked=NAMED)) as first:
        await anext(first)
        with pytest.raises(LimitExceeded, match="1 requests running at once"):
            await anext(within(limits, chunks(1), asked=other))
