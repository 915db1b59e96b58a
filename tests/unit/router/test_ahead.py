"""Laws of running ahead: one round and no more, and nothing is told before it is kept."""

import asyncio
import gc
from contextlib import aclosing

import pytest

from slipstream.core.errors import InternalError, SessionTaken
from slipstream.core.request.results import Chunk, Continuity, Ending, RequestStats, Timings
from slipstream.core.request.stats import Outcomes
from slipstream.core.types import FinishReason
from slipstream_router.lease_keeper import WriteBehind
from slipstream_router.request_runner import one_ahead

SUMMARY = Outcomes().summary(num_spec_tokens=0, lossless=True)
ENDING = Ending(FinishReason.STOP, RequestStats(1, 0, 4, Timings(0, 0, 0, 0), SUMMARY))


class Slow:
    """A journal that keeps things when it is let."""

    def __init__(self):
        self.kept, self.endings = [], []
        self.may_write = asyncio.Event()
        self.num_writes = 0
        self.error = None

    async def keep(self, tokens, ending):
        self.num_writes += 1
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        self.kept += tokens
        self.endings += [ending] if ending else []

    def continuity(self):
        return Continuity(is_kept=True)


async def rounds(made, num_rounds=5, error=None):
    """Chunks that say which one they are; a call of its own writes down that they were made."""
    try:
        for index in range(num_rounds):
            asyncio.get_running_loop().call_soon(made.append, index)
            yield Chunk(str(index), (index,))
        if error is not None:
            raise error
    finally:
        made.append("closed")


async def turn():
    """Let whatever can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_request_goes_on_while_its_tokens_are_kept_and_those_are_kept_in_order():
    slow = Slow()
    written = WriteBehind(slow)
    for token in range(4):
        await written.keep([token], None)
        await turn()
    settled = asyncio.create_task(written.settled())
    await turn()
    assert (settled.done(), slow.kept) == (False, [])
    slow.may_write.set()
    await settled
    assert slow.kept == [0, 1, 2, 3]
    assert slow.num_writes == 2  # what comes meanwhile goes together


async def test_the_last_tokens_are_kept_with_the_ending_after_all_others():
    slow = Slow()
    written = WriteBehind(slow)
    await written.keep([0], None)
    last = asyncio.create_task(written.keep([1], ENDING))
    await turn()
    assert not last.done()
    slow.may_write.set()
    await last
    assert (slow.kept, slow.endings) == ([0, 1], [ENDING])


async def test_a_caller_that_lost_the_session_is_refused_before_the_next_word():
    slow = Slow()
    slow.error = SessionTaken("elsewhere")
    slow.may_write.set()
    written = WriteBehind(slow)
    await written.keep([0], None)
    await written.finish()
    for attempt in (written.settled(), written.keep([1], None), written.keep([1], ENDING)):
        with pytest.raises(SessionTaken):
            await attempt
    assert slow.kept == []


async def test_one_round_is_made_ahead_and_no_more():
    made = []
    chunks = one_ahead(rounds(made))
    for index in range(4):
        assert (await anext(chunks)).token_ids == (index,)
        await turn()
        assert made == list(range(index + 2))
    assert [chunk.text async for chunk in chunks] == ["4"]
    assert made[-1] == "closed"


@pytest.mark.parametrize("num_read", range(5))
async def test_a_caller_that_leaves_ends_the_rounds(num_read):
    made = []
    chunks = one_ahead(rounds(made, error=InternalError("x")))
    for _ in range(num_read):
        await anext(chunks)
    await turn()
    await chunks.aclose()
    assert made[-1:] == ["closed"] * bool(num_read)


async def test_what_was_made_before_an_error_is_given_out_first():
    read = []
    with pytest.raises(InternalError):
        async for chunk in one_ahead(rounds([], error=InternalError("x"))):
            read.append(chunk.text)
    assert "".join(read) == "01234"


@pytest.mark.parametrize("leaves_at", ["a wait", "a chunk"])
async def test_a_caller_cancelled_again_while_a_round_ends_waits_for_it(caplog, leaves_at):
    """Else the rounds are closed while one runs, which is an error of its own."""
    may_end, made = asyncio.Event(), []

    async def rounds_that_end_slowly():
        try:
            yield Chunk("0", (0,))
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            made.append("closed")

    async def read():
        async with aclosing(one_ahead(rounds_that_end_slowly())) as chunks:
            async for _ in chunks:
                if leaves_at == "a chunk":
                    await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await turn()
    for _ in range(3):
        reading.cancel()
        await turn()
    assert (reading.done(), made) == (False, [])
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    gc.collect()
    assert (made, caplog.records) == (["closed"], [])
