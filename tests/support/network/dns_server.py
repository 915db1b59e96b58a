"""A name server that says of any name whatever addresses it has at the moment.
It speaks as much of the DNS (RFC 1035) as gRPC's resolver asks for: A records over UDP, and that
there are none of any other type."""

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

NAME = "routers.test"
_HEADER = struct.Struct("!6H")
_IS_ANSWER = 0x8580
_TYPE_A, _CLASS_IN = 1, 1
_POINTS_TO_QUESTION = 0xC00C


class NameServer(asyncio.DatagramProtocol):
    """Answers for any name; `addresses`, and those that are `named`, may change at any time."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.named: dict[str, list[str]] = {}
        self.port = 0
        self._transport: Any = None

    def target(self, port: int) -> str:
        """Return the gRPC target of the services at this port of the name."""
        return f"dns://127.0.0.1:{self.port}/{NAME}:{port}"

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        self._transport.sendto(self._answer(data), addr)

    def _answer(self, data: bytes) -> bytes:
        number, *_ = _HEADER.unpack_from(data)
        end = data.index(0, _HEADER.size) + 1
        question = data[_HEADER.size : end + 4]
        kind, _ = struct.unpack_from("!2H", data, end)
        found = self.named.get(_name_in(question), self.addresses)
        records = [_record(address) for address in found] if kind == _TYPE_A else []
        header = _HEADER.pack(number, _IS_ANSWER, 1, len(records), 0, 0)
        return b"".join([header, question, *records])


def _name_in(question: bytes) -> str:
    labels, at = [], 0
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode().lower())
        at += 1 + size
    return ".".join(labels)


def _record(address: str) -> bytes:
    packed = ipaddress.IPv4Address(address).packed
    return struct.pack("!3HIH", _POINTS_TO_QUESTION, _TYPE_A, _CLASS_IN, 0, len(packed)) + packed


@asynccontextmanager
async def name_server(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[NameServer]:
    """One that answers for as long as needed."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=(host, port))
    try:
        yield server
    finally:
        transport.close()
