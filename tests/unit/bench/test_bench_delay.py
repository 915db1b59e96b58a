"""A slow wire: everything arrives, in order, and not before its time."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from slipstream.bench.services import DelayLine
from slipstream.core.errors import InvalidRequest

DELAY_S = 0.02
LIMIT_S = 20


async def echo(reader, writer):
    """Send back whatever comes, until it ends."""
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def echoed_through(line):
    """A connection through the line to a server that echoes."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    await line.start()
    line.lead_to(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    host, port = line.address.split(":")
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            yield reader, writer
            writer.close()
            await writer.wait_closed()
    finally:
        await line.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("delay_s", [0.0, DELAY_S])
async def test_all_bytes_come_back_in_order(delay_s):
    sent = bytes(range(256)) * 8192
    async with echoed_through(DelayLine(delay_s)) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent


async def test_nothing_arrives_before_its_time():
    clock = asyncio.get_running_loop().time
    async with echoed_through(DelayLine(DELAY_S)) as (reader, writer):
        for _ in range(3):
            start = clock()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert clock() - start >= 2 * DELAY_S


async def test_the_delay_can_be_changed_while_connections_last():
    line = DelayLine(10.0)
    async with echoed_through(line) as (reader, writer):
        line.set_delay(0.0)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"


async def test_a_line_that_leads_nowhere_hangs_up():
    line = DelayLine()
    await line.start()
    reader, writer = await asyncio.open_connection(*line.address.split(":"))
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await line.close()


async def test_closing_cuts_connections():
    line = DelayLine()
    async with echoed_through(line) as (reader, writer):
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await line.close()
        assert await reader.read() == b""


@pytest.mark.parametrize("delay_s", [-0.001, 11, float("nan")])
def test_a_delay_that_makes_no_sense_is_refused(delay_s):
    with pytest.raises(InvalidRequest, match="the delay is"):
        DelayLine(delay_s)
