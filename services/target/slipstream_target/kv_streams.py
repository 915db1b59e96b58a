"""Streams of keys and values, from the engine's cache to drafts. Verification waits for none.

A slice is copied out on the engine's thread, one at a time for all streams together, and at most
one ahead of what its reader takes: whatever became final meanwhile goes out as one. It is
serialised on another thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from slipstream.core.errors import (
    InvalidRequest,
    PermissionDenied,
    SessionClosed,
    SessionNotFound,
    SessionOutOfSync,
)
from slipstream.engine.thread import EngineThread
from slipstream.rpc.kv import (
    ENCODING,
    KvEncoding,
    KvFormat,
    KvFrame,
    KvStreamSource,
    frame_to_bytes,
    keep_freed_memory,
)
from slipstream.rpc.protocol import PROTOCOL_VERSION, Expectation, require_agreement
from slipstream.rpc.tensors import dtype_of, pack
from slipstream.rpc.v1 import target_pb2
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.kv_sender import KvSender, KvSlice, check_layers
from slipstream_target.verify_stream import KvReader, VerifyStream

SLICE_BYTES = 4 << 20
"""Size of a slice, for which a verification may have to wait: a copy of less than a millisecond.

Beside a busy engine one slice goes out per round, so this bounds the speed, too.
"""

SHORT_BYTES = 64 << 10
"""Slices up to here are serialised on the event loop: a thread takes longer to start."""

Write = Callable[[bytes], Awaitable[None]]


_Message = tuple[int, bytes]
"""A number of positions, and they as they are sent."""
OnSent = Callable[[int], None]
"""Called with the bytes of every snapshot once it is out: all that there was for a reader at a
time, sent in slices."""


@dataclass(frozen=True, slots=True)
class _KvStream:
    source: KvStreamSource
    form: KvFormat
    session: VerifyStream
    reader: KvReader
    write: Write
    on_sent: OnSent


class KvStreams:
    """Serves `StreamKv` of one target."""

    def __init__(
        self,
        target: LocalTarget,
        thread: EngineThread,
        sessions: Mapping[str, VerifyStream],
        incarnation: str,
    ) -> None:
        """`sessions` are those with a running request."""
        keep_freed_memory()
        self._target = target
        self._thread = thread
        self._sessions = sessions
        self._incarnation = incarnation
        self._lock = asyncio.Lock()
        self.num_open = 0
        """Streams that are open."""
        self.num_bytes = 0
        """Bytes of payload sent since the start."""

    async def serve(
        self, request: target_pb2.StreamKvRequest, write: Write, on_sent: OnSent
    ) -> None:
        """Send what there is, then what comes, until the session ends.

        Raises `HandshakeError` for another process, `SessionNotFound`, `PermissionDenied` for a
        wrong credential, `InvalidRequest` for layers that are not there, `SessionOutOfSync` for a
        start above what is held.
        """
        session = self._admit(request)
        form = self._form(request)
        source = KvStreamSource(session.session_id, self._incarnation)
        self.num_open += 1
        try:
            async with session.reader() as reader:
                stream = _KvStream(source, form, session, reader, write, on_sent)
                skipped = range(request.skip_from, request.skip_to) or range(0)
                sender = await self._sender(stream, request.start, skipped)
                if sender is not None:
                    await self._send(stream, sender)
        finally:
            self.num_open -= 1

    def _admit(self, request: target_pb2.StreamKvRequest) -> VerifyStream:
        expected: list[Expectation] = [
            ("protocol_version", PROTOCOL_VERSION, request.protocol_version),
            ("incarnation", self._incarnation, request.incarnation),
        ]
        require_agreement("this target", expected)
        if request.start in range(request.skip_from, request.skip_to):
            raise InvalidRequest(
                f"start is {request.start}, but positions {request.skip_from} to"
                f" {request.skip_to - 1} are not read"
            )
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionNotFound(f"no request of session {request.session_id} is running here")
        if not session.admits(request.credential):
            raise PermissionDenied(f"the credential is not that of session {session.session_id}")
        return session

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

    async def _sender(self, stream: _KvStream, start: int, skipped: range) -> KvSender | None:
        """Return a sender of the session's cache once that is there; None if it ends before."""
        session, news = stream.session, stream.reader.news
        session_id, layers = session.session_id, stream.form.layers
        while not session.is_ended:
            news.clear()
            try:
                done = await self._thread.run(
                    lambda: self._target.kv_sender(session_id, layers, start, skipped)
                )
            except SessionNotFound:
                if start not in (0, skipped.stop):
                    raise SessionOutOfSync(
                        f"keys and values from position {start} on were asked for, but none are"
                        " held yet"
                    ) from None
                await news.wait()
            else:
                return done.value
        return None

    async def _send(self, stream: _KvStream, sender: KvSender) -> None:
        while not stream.session.is_ended:
            stream.reader.news.clear()
            try:
                num_bytes = await self._send_snapshot(stream, sender)
            except SessionClosed:
                return
            if num_bytes:
                stream.on_sent(num_bytes)
            else:
                await stream.reader.news.wait()

    async def _send_snapshot(self, stream: _KvStream, sender: KvSender) -> int:
        """Send slices until one takes all that is left; return the bytes of them."""
        messages = await self._next(stream, sender)
        count = 0
        while messages:
            count += sum(num_positions for num_positions, _ in messages)
            is_last = len(messages) < _slice_frames(stream.form) or stream.session.is_ended
            if is_last:
                await self._write(stream, messages)
                break
            # The next slice is made while this one is sent.
            written, following = await asyncio.gather(
                self._write(stream, messages),
                self._next(stream, sender),
                return_exceptions=True,
            )
            if written is not None:
                raise written
            if isinstance(following, BaseException):
                raise following
            messages = following
        return count * stream.form.bytes_per_position

    async def _write(self, stream: _KvStream, messages: list[_Message]) -> None:
        for num_positions, data in messages:
            await stream.write(data)
            self.num_bytes += num_positions * stream.form.bytes_per_position

    async def _next(self, stream: _KvStream, sender: KvSender) -> list[_Message]:
        """Return what comes next, as much as one copy may take, serialised."""
        num_frames, count = _slice_frames(stream.form), stream.form.max_positions

        def take() -> list[KvSlice]:
            return list(filter(None, (sender.take(count) for _ in range(num_frames))))

        def make() -> list[_Message]:
            return [_message(piece, stream) for piece in pieces]

        async with self._lock:
            pieces = (await self._thread.run(take)).value
        is_short = sum(piece.values.nbytes for piece in pieces) <= SHORT_BYTES
        return make() if is_short else await asyncio.to_thread(make)


def _message(piece: KvSlice, stream: _KvStream) -> _Message:
    frame = KvFrame(piece.start, piece.count, pack(piece.values, stream.form.encoding))
    return piece.count, frame_to_bytes(stream.source, stream.form, frame)


def _slice_frames(form: KvFormat) -> int:
    frame_bytes = form.max_positions * form.num_heads * form.head_dim * form.dtype.num_bytes
    return max(1, SLICE_BYTES // frame_bytes)
