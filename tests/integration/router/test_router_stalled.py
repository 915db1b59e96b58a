"""Callers that stop reading, and requests that do not end: a router gives back what they hold."""

import asyncio
import struct
from collections import defaultdict
from contextlib import asynccontextmanager, suppress

import pytest

from slipstream.client import SamplingParams
from slipstream.core.errors import DeadlineExceeded
from slipstream.rpc.v1 import generation_pb2 as pb
from support.services.fleet import eventually, routed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
NO_WINDOW = struct.pack("!HI", 4, 0)


def header(name, value):
    """A short header as HPACK writes it without an index and without Huffman's code."""
    return b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


class RawCaller:
    """One connection, whose streams have a window of zero bytes until it is opened."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._changed = asyncio.Condition()
        self._last_stream = -1
        self.headers, self.ended = set(), set()
        self.data = defaultdict(bytes)
        writer.write(PREFACE)
        self._send(SETTINGS, 0, 0, NO_WINDOW)

    def call(self, path, message):
        """Send a request; the number of its stream."""
        self._last_stream += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(header(*pair) for pair in fields.items())
        self._send(HEADERS, END_HEADERS, self._last_stream, block)
        data = message.SerializeToString()
        prefixed = struct.pack("!BI", 0, len(data)) + data
        self._send(DATA, END_STREAM, self._last_stream, prefixed)
        return self._last_stream

    def open_window(self, stream, num_bytes):
        self._send(WINDOW, 0, stream, struct.pack("!I", num_bytes))

    async def until(self, holds, limit_s=20):
        async with asyncio.timeout(limit_s), self._changed:
            await self._changed.wait_for(holds)

    async def listen(self):
        """Take frames until the connection ends."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                async with self._changed:
                    self._took(head[3], head[4], int.from_bytes(head[5:]), payload)
                    self._changed.notify_all()

    def _took(self, kind, flags, stream, payload):
        if kind in (SETTINGS, PING) and not flags & ACK:
            self._send(kind, ACK, 0, payload if kind == PING else b"")
        if kind == HEADERS:
            self.headers.add(stream)
        if kind == DATA:
            self.data[stream] += payload
        if kind == RESET or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.ended.add(stream)

    def _send(self, kind, flags, stream, payload):
        size = struct.pack("!I", len(payload))[1:]
        self._writer.write(size + struct.pack("!BBI", kind, flags, stream) + payload)


@asynccontextmanager
async def raw_caller(address):
    """A caller of the server at an address."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    caller = RawCaller(reader, writer)
    listening = asyncio.create_task(caller.listen())
    try:
        yield caller
    finally:
        listening.cancel()
        await asyncio.wait({listening})
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


STREAM = "/slipstream.rpc.v1.GenerationService/GenerateStream"
NUM_TOKENS = 40


def request(request_id):
    stopping = pb.StoppingCriteria(max_new_tokens=NUM_TOKENS)
    asked = pb.Generation(
        request_id=request_id,
        prompt=pb.Prompt(text="hello"),
        stopping=stopping,
        sampling={"seed": 1},
    )
    return pb.GenerateStreamRequest(generation=asked)


async def test_readers_that_stop_give_back_places_and_targets_and_their_requests_go_on(served):
    async with (
        routed([served], max_requests=2, send_timeout_s=0.3) as client,
        raw_caller(client.address) as caller,
    ):
        streams = {caller.call(STREAM, request(f"r{number}")) for number in range(2)}
        await caller.until(lambda: caller.headers == streams)  # they run, and have answers
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        await eventually(served.load, lambda load: load.num_sessions == 0)
        options = {"max_tokens": NUM_TOKENS, "sampling": SamplingParams(seed=1)}
        again = await client.generate("hello", request_id="r0", **options)
        assert again.stats.continuity.num_resumed_tokens > 0
        assert again.token_ids == (await client.generate("hello", **options)).token_ids
        assert caller.data == {}


async def test_a_reader_that_goes_on_too_late_is_refused(served):
    async with routed([served], send_timeout_s=0.1) as client, raw_caller(client.address) as caller:
        stream = caller.call(STREAM, request("r"))
        await caller.until(lambda: stream in caller.headers)
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        caller.open_window(stream, 1 << 16)
        await caller.until(lambda: stream in caller.ended)
        num_bytes = int.from_bytes(caller.data[stream][1:5])
        message = pb.GenerateStreamResponse.FromString(caller.data[stream][5:])
        assert num_bytes == message.ByteSize()  # only what was on its way


async def test_a_request_has_an_end_even_where_its_caller_sets_none(served):
    async with routed([served], request_timeout_s=0.2) as client:
        with pytest.raises(DeadlineExceeded, match=r"has run for 0\.2 s, the longest time"):
            async for _ in client.stream("hello", max_tokens=4000):
                pass
        with pytest.raises(DeadlineExceeded, match=r"has run for 0\.2 s, the longest time"):
            await client.generate("hello", max_tokens=4000)
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        await eventually(served.load, lambda load: load.num_sessions == 0)
