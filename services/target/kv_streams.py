"""Streams of keys and values, from the engine's cache to drafts. Verification waits for none.

A slice is copied out on the engine's thread, one at a time for all streams together, and only when
its reader has room: whatever became final meanwhile goes out as one. Knows no drafts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from slipstream.core.errors import (
    PermissionDenied,
    SessionClosed,
    SessionNotFound,
    SessionOutOfSync,
)
from slipstream.core.timing import Clock
from slipstream.engine.thread import EngineThread
from slipstream.rpc.kv import ENCODING, KvEncoding, KvFormat, KvFrame, KvSource, frame_to_pb
from slipstream.rpc.protocol import PROTOCOL_VERSION, Expectation, require_agreement
from slipstream.rpc.tensors import dtype_of, pack
from slipstream.rpc.v1 import target_pb2
from slipstream.target.engine import LocalTarget
from slipstream.target.served import Reader, Served, ServedSessions
from slipstream.target.taps import KvSlice, KvTap, check_layers

SLICE_BYTES = 4 << 20
"""What a verification may have to wait for: one copy of about so many bytes, below a millisecond.

Beside a busy engine one slice goes out per round, so this bounds the speed, too.
"""

Write = Callable[[target_pb2.StreamKvResponse], Awaitable[None]]


@dataclass(slots=True)
class Snapshot:
    """What one reader was sent at a stretch: all that there was at the time, in slices."""

    began: float
    verified: object | None = None
    """What was told of it: see `Served.tell`."""
    start: int = 0
    count: int = 0
    num_bytes: int = 0
    ended: float = 0.0

    def add(self, frame: KvFrame, now: float) -> None:
        """A frame is out."""
        self.count += frame.count
        self.num_bytes += len(frame.payload)
        self.ended = now


Sent = Callable[[Snapshot], None]
"""Told of every snapshot once it is out."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """What one reader was promised, and where it stands."""

    source: KvSource
    form: KvFormat
    served: Served
    reader: Reader
    write: Write
    sent: Sent


class KvStreams:
    """Serves `StreamKv` of one target."""

    def __init__(
        self,
        target: LocalTarget,
        thread: EngineThread,
        sessions: ServedSessions,
        incarnation: str,
        *,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._target = target
        self._clock = clock
        self._thread = thread
        self._sessions = sessions
        self._incarnation = incarnation
        self._turn = asyncio.Lock()
        self._num_open = 0
        self._num_bytes = 0

    @property
    def num_open(self) -> int:
        """Streams that are open."""
        return self._num_open

    @property
    def num_bytes(self) -> int:
        """Bytes of payload sent since the start."""
        return self._num_bytes

    async def serve(self, request: target_pb2.StreamKvRequest, write: Write, sent: Sent) -> None:
        """Send what there is, then what comes, until the session ends.

        Raises `HandshakeError` for another process, `SessionNotFound`, `PermissionDenied` for a
        wrong credential, `InvalidRequest` for layers that are not there, `SessionOutOfSync` for a
        start above what is held.
        """
        served = self._admit(request)
        form = self._form(request)
        source = KvSource(served.session_id, self._incarnation)
        async with self._counted(), served.reader() as reader:
            stream = _Stream(source, form, served, reader, write, sent)
            tap = await self._tap(stream, request.start)
            if tap is not None:
                await self._send(stream, tap)

    def _admit(self, request: target_pb2.StreamKvRequest) -> Served:
        expected = [
            Expectation("protocol_version", PROTOCOL_VERSION, request.protocol_version),
            Expectation("incarnation", self._incarnation, request.incarnation),
        ]
        require_agreement("this target", expected)
        served = self._sessions.find(request.session_id)
        if not served.admits(request.credential):
            raise PermissionDenied(f"the credential is not that of session {served.session_id}")
        return served

    def _form(self, request: target_pb2.StreamKvRequest) -> KvFormat:
        layout = self._target.layout
        check_layers(request.layers, layout.num_layers)
        return KvFormat(
            tuple(request.layers),
            layout.num_kv_heads,
            layout.head_dim,
            dtype_of(layout.dtype),
            ENCODING.from_pb(request.encoding) or KvEncoding.RAW,
        )

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    async def _tap(self, stream: _Stream, start: int) -> KvTap | None:
        """A place in the session's cache, once there is one; None when the session ends before."""
        served, news = stream.served, stream.reader.news
        while not served.is_over:
            news.clear()
            try:
                done = await self._thread.run(
                    lambda: self._target.tap(served.session_id, stream.form.layers, start)
                )
            except SessionNotFound:
                if start > 0:
                    raise SessionOutOfSync(
                        f"keys and values from position {start} on were asked for, but none are"
                        " held yet"
                    ) from None
                await news.wait()
            else:
                return done.value
        return None

    async def _send(self, stream: _Stream, tap: KvTap) -> None:
        """Send snapshot after snapshot."""
        while not stream.served.is_over:
            stream.reader.news.clear()
            snapshot = Snapshot(self._clock())
            try:
                is_new = await self._catch_up(stream, tap, snapshot)
            except SessionClosed:
                return
            finally:
                if snapshot.num_bytes:
                    stream.sent(snapshot)
            if not is_new:
                stream.reader.take_verified()  # what it made went out before
                await stream.reader.news.wait()

    async def _catch_up(self, stream: _Stream, tap: KvTap, snapshot: Snapshot) -> bool:
        """Send slices until one takes all that is left; whether there was anything."""
        most = _slice_positions(stream.form)
        piece = await self._take(tap, most)
        if piece is None:
            return False
        snapshot.start = piece.start
        snapshot.verified = stream.reader.take_verified()
        while piece is not None:
            for frame in _frames(piece, stream.form):
                await stream.write(frame_to_pb(stream.source, stream.form, frame))
                self._num_bytes += len(frame.payload)
                snapshot.add(frame, self._clock())
            is_last = piece.count < most or stream.served.is_over
            piece = None if is_last else await self._take(tap, most)
        if snapshot.verified is None:  # the step was over, but nobody had come to tell of it
            snapshot.verified = stream.reader.take_verified()
        return True

    async def _take(self, tap: KvTap, count: int) -> KvSlice | None:
        async with self._turn:
            return (await self._thread.run(lambda: tap.take(count))).value


def _frames(piece: KvSlice, form: KvFormat) -> Iterator[KvFrame]:
    step = form.max_positions
    for at in range(0, piece.count, step):
        values = piece.values[:, :, at : at + step]
        yield KvFrame(piece.start + at, values.shape[2], pack(values, form.encoding))


def _slice_positions(form: KvFormat) -> int:
    """Positions of about `SLICE_BYTES` in the cache, in whole payloads."""
    frame_bytes = form.max_positions * form.num_heads * form.head_dim * form.dtype.num_bytes
    return form.max_positions * max(1, SLICE_BYTES // frame_bytes)
