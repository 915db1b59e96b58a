"""A gRPC caller on a bare socket, which takes no more of an answer than a test says."""

import asyncio
import struct
from collections import defaultdict
from contextlib import asynccontextmanager, suppress

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4


class RawCaller:
    """One connection, whose streams have a window of zero bytes until it is opened."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._changed = asyncio.Condition()
        self._last_stream = -1
        self.headers, self.ended = set(), set()
        self.data = defaultdict(bytes)
        writer.write(_PREFACE)
        self._send(_SETTINGS, 0, 0, struct.pack("!HI", _INITIAL_WINDOW_SIZE, 0))

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
        block = b"".join(_literal(*field) for field in fields.items())
        self._send(_HEADERS, _END_HEADERS, self._last_stream, block)
        data = message.SerializeToString()
        prefix = struct.pack("!BI", 0, len(data))
        self._send(_DATA, _END_STREAM, self._last_stream, prefix + data)
        return self._last_stream

    def open_window(self, stream, num_bytes):
        self._send(_WINDOW_UPDATE, 0, stream, struct.pack("!I", num_bytes))

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
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._send(kind, _ACK, 0, payload if kind == _PING else b"")
        if kind == _HEADERS:
            self.headers.add(stream)
        if kind == _DATA:
            self.data[stream] += payload
        if kind == _RESET or (kind in (_HEADERS, _DATA) and flags & _END_STREAM):
            self.ended.add(stream)

    def _send(self, kind, flags, stream, payload):
        length = len(payload).to_bytes(3)
        self._writer.write(length + bytes([kind, flags]) + stream.to_bytes(4) + payload)


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


def _literal(name, value):
    """A header field in HPACK, neither indexed nor compressed."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
