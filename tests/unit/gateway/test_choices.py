"""Several answers as one stream: read no faster than they are taken, and all of them end."""

import asyncio
from contextlib import aclosing

import pytest

from slipstream.client import AsyncChunkStream, Chunk
from slipstream.core.errors import ModelError
from slipstream_gateway.choices import merged, opened

NUM_STREAMS = 4


class Source:
    """An answer of so many chunks, which may then fail; counts those that were read."""

    def __init__(self, length, error=None):
        self.length, self.error = length, error
        self.num_read, self.is_open = 0, True

    async def start(self):
        return await self.read()

    async def read(self):
        await asyncio.sleep(0)
        self.num_read += 1
        if self.num_read <= self.length:
            return Chunk("x" * 1000, (1,))
        self.is_open = False
        if self.error is not None:
            raise self.error
        return None

    async def aclose(self):
        self.is_open = False

    def cancel(self):
        self.is_open = False


async def streams_of(sources):
    return await opened(*(AsyncChunkStream(source, request_id="r") for source in sources))


async def until_nothing_moves(sources):
    before = None
    while (now := [source.num_read for source in sources]) != before:
        before = now
        for _ in range(20):
            await asyncio.sleep(0)


async def test_answers_are_read_no_faster_than_they_are_taken_and_end_when_the_caller_leaves():
    sources = [Source(10_000) for _ in range(NUM_STREAMS)]
    async with aclosing(merged(await streams_of(sources))) as chunks:
        for num_taken in range(1, 100):
            await anext(chunks)
            await until_nothing_moves(sources)
            assert sum(source.num_read for source in sources) <= num_taken + 2 * NUM_STREAMS + 1
    assert not any(source.is_open for source in sources)


@pytest.mark.parametrize("lengths", [(1, 5, 50), (50, 50, 50), (3, 1, 1)])
async def test_every_chunk_of_every_answer_comes_in_its_order_whichever_ends_first(lengths):
    sources = [Source(length) for length in lengths]
    found = [index async for index, _ in merged(await streams_of(sources))]
    assert [found.count(index) for index in range(len(lengths))] == list(lengths)


async def test_an_answer_that_fails_ends_the_others_though_none_of_them_is_taken():
    sources = [Source(10_000) for _ in range(NUM_STREAMS - 1)]
    sources.append(Source(3, ModelError("it broke")))
    with pytest.raises(ModelError, match="it broke"):
        async for _ in merged(await streams_of(sources)):
            await until_nothing_moves(sources)
    assert not any(source.is_open for source in sources)
