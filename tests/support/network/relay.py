"""What passes over a connection, for tests of who could read it: a TCP relay, and raw packets."""

import asyncio
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOOPBACK = "127.0.0.1"
_ALL_PROTOCOLS, _IPV4, _TCP, _OUTGOING = 3, 0x0800, 6, 4


class Relay:
    """Passes on every connection to a port of this machine, and keeps what went through."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.streams: list[bytearray] = []
        """Of each connection, one of what was sent there and one of what came back."""

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    @property
    def port(self) -> int:
        return self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.streams))

    @property
    def num_connections(self) -> int:
        return len(self.streams) // 2

    def cut(self) -> None:
        """End all connections; there may be new ones."""
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._both_ways(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _both_ways(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        far = None
        try:
            far_reader, far = await asyncio.open_connection(LOOPBACK, self._to)
            self._writers.add(far)
            await asyncio.gather(self._pass_on(reader, far), self._pass_on(far_reader, near))
        except OSError:
            pass  # the other side is gone, as is to be seen on this one
        for writer in filter(None, (near, far)):
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.streams.append(kept := bytearray())
        try:
            while data := await reader.read(1 << 16):
                kept += data
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


class Packets:
    """What TCP carries over the loopback interface, by its two ports, as any process sees it."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._streams: defaultdict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._capture)
        self._thread.start()

    def of(self, ports: set[int]) -> list[bytearray]:
        self._is_over.set()
        self._thread.join()
        return [data for at, data in self._streams.items() if not ports.isdisjoint(at)]

    def _capture(self) -> None:
        while True:
            try:
                frame, (_, protocol, kind, *_) = self._raw.recvfrom(1 << 17)
            except TimeoutError:
                if self._is_over.is_set():  # and nothing is left
                    return
                continue
            if protocol == _IPV4 and kind == _OUTGOING:  # each is seen coming in as well
                self._keep(frame)

    def _keep(self, packet: bytes) -> None:
        if packet[9] != _TCP:
            return
        start = (packet[0] & 15) * 4
        ports = struct.unpack_from("!HH", packet, start)
        payload = start + (packet[start + 12] >> 4) * 4
        self._streams[ports] += packet[payload : struct.unpack_from("!H", packet, 2)[0] or None]


@contextmanager
def captured() -> Iterator[Packets | None]:
    """Packets from now on; None where this process may not see them."""
    try:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS))
    except (AttributeError, PermissionError):
        yield None
        return
    with raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
        raw.bind(("lo", _ALL_PROTOCOLS))
        raw.settimeout(0.05)
        packets = Packets(raw)
        try:
            yield packets
        finally:
            packets.of(set())
