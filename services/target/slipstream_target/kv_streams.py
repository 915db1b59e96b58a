"""The streams of keys and values to drafts, and what granted rounds ask of these.

A slice is found on the engine's thread, one at a time for all streams together, and at most one
ahead of what its reader takes: whatever became final meanwhile goes out as one. It is copied and
serialised on another thread, and again where the session has let go of it meanwhile. Verification
waits for none.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from slipstream.core.errors import (
    InvalidRequest,
    PermissionDenied,
    SessionClosed,
    SessionNotFound,
    SessionOutOfSync,
)
from slipstream.core.inline import beside
from slipstream.engine.thread import EngineThread
from slipstream.models.kv.cache import view_layout
from slipstream.rpc.kv import (
    ENCODING,
    KvEncoding,
    KvFormat,
    KvFrame,
    KvStreamSource,
    dtype_of,
    frame_to_bytes,
    keep_freed_memory,
    pack,
    propose_to_bytes,
)
from slipstream.rpc.leases import kind_of
from slipstream.rpc.protocol import PROTOCOL_VERSION, Expectation, require_agreement
from slipstream.rpc.v1 import target_pb2
from slipstream.telemetry.logs import bind
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.kv_sender import KvSender, KvSlice
from slipstream_target.granted import KvReader
from slipstream_target.verify_stream import VerifyStream

SLICE_BYTES = 4 << 20
"""Size of a slice. Beside a busy engine one goes out per round, so this bounds the speed. What a
device holds, or pages that are no neighbours, is copied while a verification waits: for less than a
millisecond."""
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
        self.num_bytes = 0
        """Bytes of payload sent since the start."""

    async def serve(
        self, messages: AsyncIterator[target_pb2.StreamKvRequest], write: Write, on_sent: OnSent
    ) -> None:
        """Send what there is, then what comes, until the session ends; a reader may answer with
        proposals.

        Raises `HandshakeError` for another process, `SessionNotFound`, `PermissionDenied` for a
        wrong credential, what `view_layout` does for layers, `SessionOutOfSync` for a start above
        what is held, `InvalidRequest` for a proposal that was not requested.
        """
        opening = await anext(messages, None)
        if opening is None:
            return
        kind_of(opening, ("open",), "a stream of keys and values names its session first")
        request = opening.open
        bind(session_id=request.session_id)
        session, form = self._admitted(request), self._form(request)
        source = KvStreamSource(request.session_id, self._incarnation)
        self.num_open += 1
        try:
            async with session.reader() as reader, beside(reader.read(messages)):
                if request.proposes:
                    session.granted.propose_by(reader)
                stream = _KvStream(source, form, session, reader, write, on_sent)
                skipped = range(request.skip_from, request.skip_to) or range(0)
                sender = await self._sender(stream, request.start, skipped)
                if sender is not None:
                    await self._send(stream, sender)
        finally:
            self.num_open -= 1

    def _admitted(self, request: target_pb2.OpenKv) -> VerifyStream:
        """Return the running request whose keys and values a draft may read."""
        expected: list[Expectation] = [
            ("protocol_version", PROTOCOL_VERSION, request.protocol_version),
            ("incarnation", self._incarnation, request.incarnation),
        ]
        require_agreement("this target", expected)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionNotFound(f"no request of session {request.session_id} is running here")
        if not session.admits(request.credential):
            raise PermissionDenied(f"the credential is not that of session {request.session_id}")
        return session

    def _form(self, request: target_pb2.OpenKv) -> KvFormat:
        if request.start in range(request.skip_from, request.skip_to):
            raise InvalidRequest(
                f"start is {request.start}, but positions {request.skip_from} to"
                f" {request.skip_to - 1} are not read"
            )
        layout = view_layout(self._target.layout, request.layers)
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
        session_id, layers = stream.source.session_id, stream.form.layers
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
                stream.reader.check()
                await news.wait()
            else:
                return done.value
        return None

    async def _send(self, stream: _KvStream, sender: KvSender) -> None:
        sender.num_ahead = SHORT_BYTES // stream.form.bytes_per_position
        while not stream.session.is_ended:
            stream.reader.news.clear()
            try:
                num_bytes = await self._send_snapshot(stream, sender)
            except SessionClosed:
                return
            if num_bytes:
                stream.on_sent(num_bytes)
            else:
                stream.reader.check()
                await stream.reader.news.wait()

    async def _send_snapshot(self, stream: _KvStream, sender: KvSender) -> int:
        """Send slices until one takes all that is left, with what is requested of the draft; return
        the bytes of them."""
        messages = await self._next(stream, sender)
        count = sum(num_positions for num_positions, _ in messages)
        while len(messages) == _slice_frames(stream.form) and not stream.session.is_ended:
            # The next slice is made while this one is sent.
            written, following = await asyncio.gather(
                self._write(stream, messages), self._next(stream, sender), return_exceptions=True
            )
            if written is not None:
                raise written
            if isinstance(following, BaseException):
                raise following
            messages = following
            count += sum(num_positions for num_positions, _ in messages)
        propose = stream.reader.requested()
        if propose is not None:
            num_positions, data = messages.pop() if messages else (0, b"")
            messages.append((num_positions, data + propose_to_bytes(propose)))
        await self._write(stream, messages)
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
            return [(piece.count, _packed(piece, stream)) for piece in pieces]

        ahead = sender.taken_ahead()
        if ahead is not None:
            pieces = [ahead]
        elif sender.is_behind:
            async with self._lock:
                pieces = (await self._thread.run(take)).value
        else:
            return []
        is_short = sum(layer.nbytes for piece in pieces for layer in piece.layers) <= SHORT_BYTES
        messages = make() if is_short else await asyncio.to_thread(make)
        if all(map(sender.holds, pieces)):
            return messages
        await self._thread.run(lambda: sender.truncate(pieces[0].start))
        return await self._next(stream, sender)


def _packed(piece: KvSlice, stream: _KvStream) -> bytes:
    frame = KvFrame(piece.start, piece.count, pack(piece.layers, stream.form.encoding))
    return frame_to_bytes(stream.source, stream.form, frame)


def _slice_frames(form: KvFormat) -> int:
    frame_bytes = form.max_positions * form.num_heads * form.head_dim * form.dtype.num_bytes
    return max(1, SLICE_BYTES // frame_bytes)
