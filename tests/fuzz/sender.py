"""Sends cases to services, and says what came of each: a status, in one word."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[attr-defined]

from fuzz.case import HTTP, INCARNATION, METHODS, TARGET, Case

DEADLINE_S = 0.5
LEFT_AFTER_S = 0.01
"""A caller that leaves in the middle."""
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 16)]
_OWN = ("Internal error from Core", "Stream removed")
"""What the client's side makes of a write that meets the end of its stream: no answer."""


class Sender:
    """Connections to services by role. `names` are what stands in cases for things of this run."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.names: dict[bytes, bytes] = {}

    def of_target(self, incarnation: str, address: str) -> None:
        """Send these where a case has what stands for them."""
        self.names = {INCARNATION.encode(): incarnation.encode(), TARGET.encode(): address.encode()}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def send(self, case: Case) -> str:
        """What came of it: a code with its sentence where it is one of a bug."""
        return await (self._raw(case) if case.to == HTTP else self._call(case))

    def _parts(self, case: Case) -> list[bytes]:
        parts = list(case.parts)
        for neutral, own in self.names.items():
            parts = [part.replace(neutral, own) for part in parts]
        return parts

    def _channel(self, role: str) -> grpc.aio.Channel:
        if role not in self._channels:
            address = self._addresses[role]
            self._channels[role] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._channels[role]

    async def _call(self, case: Case) -> str:
        parts, method = self._parts(case), METHODS[case.to]
        parts = parts * 2 if case.manner == "twice" else parts
        channel = self._channel(case.role)
        if method.is_stream or case.manner == "twice":
            call: Any = channel.stream_stream(method.path)(timeout=DEADLINE_S)
            reading = _in_turn if case.manner == "answered" else _at_once
            read = reading(call, parts, is_whole=case.manner != "abandon")
        else:
            call = channel.unary_stream(method.path)(parts[0], timeout=DEADLINE_S)
            read = _to_end(call)
        # A read of a call that is cancelled beside it may never end: gRPC's client, not our server.
        limit_s = LEFT_AFTER_S if case.manner in ("cancel", "abandon") else 2 * DEADLINE_S
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(read, limit_s)
        call.cancel()
        return _outcome(await call.code(), await call.details())

    async def _raw(self, case: Case) -> str:
        host, _, port = self._addresses[case.role].rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError as error:
            return f"CONNECTION {type(error).__name__}"
        try:
            return await _answer(reader, writer, case)
        except OSError:
            return "RESET"
        finally:
            if case.manner == "cancel":
                writer.transport.abort()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


# What gRPC's client raises where a call has ended before it was written: reading says why.
_ENDED = (asyncio.InvalidStateError, ExecuteBatchError)


async def _to_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def _in_turn(call: Any, parts: list[bytes], *, is_whole: bool) -> None:
    """Send one message after the other, each once the one before was answered."""
    for part in parts:
        with suppress(*_ENDED):
            await call.write(part)
        if await call.read() is grpc.aio.EOF:
            return
    with suppress(*_ENDED):
        if is_whole:
            await call.done_writing()
    await _to_end(call)


async def _at_once(call: Any, parts: list[bytes], *, is_whole: bool) -> None:
    """Send all messages, then read; the stream's end comes only where it is whole."""
    with suppress(*_ENDED):
        for part in parts:
            await call.write(part)
        if is_whole:
            await call.done_writing()
    await _to_end(call)


def _outcome(code: grpc.StatusCode, details: str | None) -> str:
    if code is grpc.StatusCode.INTERNAL and str(details).startswith(_OWN):
        return "CANCELLED"
    is_bug = code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    return f"{code.name}: {details}" if is_bug else code.name


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: Case) -> str:
    """Write the parts, and read until the other side ends or the time is up."""
    for part in case.parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    if case.manner == "cancel":
        return "LEFT"
    if case.manner == "abandon" and writer.can_write_eof():
        writer.write_eof()
    head = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            async for part in _parts(reader):
                head = (head + part)[:4096]
    if not head:
        return "SILENT"
    words = head.split(None, 2)
    status = words[1].decode(errors="replace") if len(words) > 1 else "NONE"
    body = head.partition(b"\r\n\r\n")[2]
    return f"{status}: {body[:300]!r}" if status == "500" else status


async def _parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part
