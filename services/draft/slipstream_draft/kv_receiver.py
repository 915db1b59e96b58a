"""Receiver of one session's keys and values: a stream of its target, checked, into a mirror. On it
the target also requests the proposals of granted rounds.

All on the event loop but `mirror.view`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio

from slipstream.core import errors
from slipstream.core.errors import InvalidRequest, NoRoom, SessionOutOfSync, SlipstreamError
from slipstream.drafting.kv_mirror import KvMirror
from slipstream.models.scorer import NUM_SINKS
from slipstream.rpc.kv import KvFormat, KvStreamSource, frame_from_bytes, stream_request, unpack
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import draft_pb2, target_pb2
from slipstream_draft.kv_sources import Channels

STREAM_KV = "slipstream.rpc.v1.TargetService/StreamKv"
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
# Another attempt may help; any other error is the end. A session that was ended is no error.
_TRANSIENT = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.Cancelled,
    errors.InternalError,
    errors.CapacityError,
)
_REQUEST = target_pb2.StreamKvRequest
_LOG = logging.getLogger("slipstream.draft")

Propose = Callable[[draft_pb2.Propose], Awaitable[draft_pb2.Proposed]]
"""Answers a target's request for a proposal, or raises a `SlipstreamError`."""


@dataclass(frozen=True, slots=True)
class KvAddress(KvStreamSource):
    """Place of a session's keys and values: a replica, a session there, and its secret."""

    address: str
    credential: str = field(repr=False)


class KvReceiver:
    """Keeps a mirror up to date with a target, until it is cancelled."""

    def __init__(
        self,
        channels: Channels,
        readers: set[asyncio.Task[None]],
        new_mirror: Callable[[int], KvMirror],
        form: KvFormat,
    ) -> None:
        """`form` is that of every slice; `new_mirror` takes a limit on positions.

        `readers` holds the tasks that start here for as long as they run.
        """
        self.form = form
        self._channels = channels
        self._readers = readers
        self._new_mirror = new_mirror
        self.source: KvAddress | None = None
        """Place that is read, or was read last."""
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_pausing = False
        self._propose: Propose | None = None
        self._answer: asyncio.Task[None] | None = None
        self.mirror = new_mirror(0)
        self.num_received_bytes = 0

    @property
    def is_reading(self) -> bool:
        """True while a reader runs, or is about to try again."""
        return self._reader is not None and not self._reader.done()

    def follow(
        self, source: KvAddress, propose: Propose | None, *, num_same: int, skipped: range
    ) -> bool:
        """Read from there, unless that has ended already; return whether a reader starts. It
        answers the requests of the target, if it can `propose`.

        The same session of the same process goes on where the mirror ends. While it is not read,
        replaced tokens are not known, so only what belongs to the `num_same` leading tokens stays.
        `skipped` are the numbers of positions that may be left out, the last one by a mirror that
        begins.
        """
        self.mirror.truncate(num_same)
        self._propose = propose
        if source == self.source:
            return False
        before = self.cancel()
        last = self.source
        if last is None or replace(source, credential="") != replace(last, credential=""):
            limit = self.mirror.limit
            self.mirror.free()
            self.mirror = self._new_mirror(limit)
        goal = skipped[-1]
        if self.mirror.skipped not in skipped or (goal and self.mirror.count <= NUM_SINKS):
            self.mirror.free(skipped=goal)
        self.source = source
        self._reader = asyncio.get_running_loop().create_task(self._read(source, before))
        self._readers.add(self._reader)
        self._reader.add_done_callback(self._readers.discard)
        return True

    def cancel(self) -> asyncio.Task[None] | None:
        """End the reader, and return it to be waited for. What was read stays."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        return reader

    def park(self) -> None:
        """End the reader between two turns; whatever address comes next is read."""
        self.cancel()
        if self.source is not None:
            self.source = replace(self.source, credential="")

    async def wait(self, count: int, timeout_s: float) -> None:
        """Wait until the mirror has `count` positions, or the time is up, or none are to come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.mirror.count < count and self.is_reading and not self._is_pausing:
                    self._changed.clear()
                    await self._changed.wait()

    async def _read(self, source: KvAddress, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            await self._keep_reading(source)
        except SlipstreamError as error:
            _LOG.warning("%s: no more keys and values from %s: %s", *_names(source), error)
        except Exception:
            _LOG.exception("%s: the reader of %s failed", *_names(source))
        finally:
            self._changed.set()

    async def _keep_reading(self, source: KvAddress) -> None:
        """Read until the target ends the stream. Raises an error that will not pass."""
        pause_s = FIRST_PAUSE_S
        while True:
            start = self.mirror.count
            error: SlipstreamError
            try:
                await self._stream(source)
                return
            except NoRoom as refusal:
                error = refusal
            except grpc.aio.AioRpcError as status:
                error = error_from(status)
            if isinstance(error, SessionOutOfSync) and start > 0:
                self.mirror.truncate(0)
                continue
            if not isinstance(error, _TRANSIENT):
                raise error
            pause_s = FIRST_PAUSE_S if self.mirror.count != start else pause_s
            _LOG.info("%s: %s is tried again in %g s: %s", *_names(source), pause_s, error)
            self._is_pausing = True
            self._changed.set()
            try:
                await asyncio.sleep(pause_s)
            finally:
                self._is_pausing = False
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _stream(self, source: KvAddress) -> None:
        # Each attempt uses the certificates of its time. No deadline: the session's lease ends the
        # reader, and keepalive finds a lost target.
        async with self._channels.to(source.address) as channel:
            method: Any = channel.stream_stream(f"/{STREAM_KV}", _REQUEST.SerializeToString)
            call = method()
            try:
                await _write(call, self._request(source))
                await self._take_all(call, source)
            finally:
                call.cancel()
                if self._answer is not None:
                    self._answer.cancel()

    async def _take_all(self, call: Any, source: KvAddress) -> None:
        async with aclosing(_messages(call)) as messages:
            async for message in messages:
                self._take(message, source, call)

    def _request(self, source: KvAddress) -> target_pb2.StreamKvRequest:
        start, gap = self.mirror.count, self.mirror.gap
        positions = {"start": start, "skip_from": gap.start, "skip_to": gap.stop}
        proposes = self._propose is not None
        return stream_request(source, source.credential, self.form, proposes=proposes, **positions)

    def _take(self, message: bytes, source: KvStreamSource, call: Any) -> None:
        frame = frame_from_bytes(message, source, self.form)
        if frame.count:
            self.mirror.truncate(frame.start)  # gone in the target, whatever the slice is worth
            self.mirror.write(frame.start, unpack(frame, self.form))
            self.num_received_bytes += len(frame.payload)
            self._changed.set()
        if frame.propose is not None:
            if self._answer is not None and not self._answer.done():
                raise InvalidRequest("a proposal was requested before the one before it came")
            answering = self._answered(frame.propose, call)
            self._answer = asyncio.get_running_loop().create_task(answering)

    async def _answered(self, message: draft_pb2.Propose, call: Any) -> None:
        proposed = draft_pb2.Proposed()
        try:
            if self._propose is not None:
                proposed = await self._propose(message)
        except SlipstreamError as error:
            _LOG.info("a granted round goes without a proposal: %s", error)
        await _write(call, _REQUEST(proposed=proposed))


async def _write(call: Any, message: target_pb2.StreamKvRequest) -> None:
    """Write to a stream. One that has ended says why where it is read."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(message)


async def _messages(call: Any) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a stream, not parsed; the next one comes in while one is used."""
    upcoming = asyncio.ensure_future(call.read())
    try:
        while (message := await upcoming) is not grpc.aio.EOF:
            upcoming = asyncio.ensure_future(call.read())
            await asyncio.sleep(0)  # so that it begins
            yield message
    finally:
        upcoming.cancel()


def _names(source: KvAddress) -> tuple[str, str]:
    return source.session_id, source.address
