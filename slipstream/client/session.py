"""Sessions of clients: turn after turn of one conversation, each on top of those before."""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, Unpack
from weakref import WeakSet

from slipstream.client.backend import (
    AsyncChunkStream,
    AsyncClosing,
    ChunkSource,
    ChunkStream,
    ClientContext,
    Closing,
    RequestStream,
    S,
    blocking,
)
from slipstream.client.call import ClientCall, RequestOptions, check_whole
from slipstream.core import errors
from slipstream.core.request.prompt import Prompt
from slipstream.core.request.request import SessionRef
from slipstream.core.request.results import Chunk, Result, collected

T = TypeVar("T")

# A router takes a moment to learn that a stream was left, and its session is busy until then; and
# what a store that was away has missed is there a moment after it is back.
PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class _SessionBase:
    """One session as its client sees it: begun by its first turn, or by another client before."""

    def __init__(
        self, context: ClientContext, session_id: str | None, *, is_new: bool = False
    ) -> None:
        """Open a session; without an id, a new one whose name is hard to guess."""
        self._context = context
        self._session_id = SessionRef(session_id or secrets.token_hex(16)).session_id
        self._is_begun = self._is_used = session_id is not None and not is_new
        self._is_known = False
        self._is_closed = False
        self._streams: WeakSet[RequestStream] = WeakSet()

    @property
    def session_id(self) -> str:
        """Return the name of the conversation: any client that has it can continue it."""
        return self._session_id

    def _turn(
        self, kind: type[S], prompt: Prompt, options: RequestOptions, *, is_stream: bool
    ) -> S:
        context = self._context
        call = context.call(prompt, options, is_stream=is_stream, session=self._ref())
        return kind(
            _SessionTurn(self, call),
            request_id=call.request_id,
            telemetry=call.telemetry,
            on_start=self._begin,
        )

    def _ref(self) -> SessionRef:
        """Return the session as the next request names it. Raises `SessionClosed`."""
        if self._is_closed:
            raise errors.SessionClosed(f"session {self.session_id} is closed")
        self._is_used = True
        return SessionRef(self.session_id, create=not self._is_begun)

    def _begin(self, stream: RequestStream) -> None:
        self._is_begun = self._is_known = True
        self._streams.add(stream)

    def _running(self) -> list[RequestStream]:
        return [stream for stream in self._streams if stream.is_open]

    async def _retried(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send again while the error may pass; a turn that still runs is `SessionBusy` at once."""
        for pause_s in PAUSES_S:
            try:
                return await send()
            except errors.SessionError as error:
                if not self._is_passing(error):
                    raise
                await self._context.backend.pause(pause_s)
        return await send()

    def _is_passing(self, error: errors.SessionError) -> bool:
        if isinstance(error, errors.SessionNotFound):
            return self._is_known and not self._is_closed
        return isinstance(error, errors.SessionBusy) and not self._running()


class _SessionTurn:
    """See `ChunkSource`: the turn of a session, sent again where that may help."""

    def __init__(self, session: _SessionBase, call: ClientCall) -> None:
        self._session = session
        self._call = call
        self._source: ChunkSource | None = None

    async def start(self) -> Chunk | None:
        """See `ChunkSource.start`.

        A session that exists where it should begin was begun by a turn whose answer got lost: the
        id is this client's own.
        """
        session = self._session
        try:
            return await session._retried(self._send)
        except errors.SessionExists:
            if session._is_begun:
                raise
        session._is_begun = True
        generation = replace(self._call.generation, session=session._ref())
        self._call = replace(self._call, generation=generation)
        return await self._send()

    async def read(self) -> Chunk | None:
        return None if self._source is None else await self._source.read()

    async def aclose(self) -> None:
        if self._source is not None:
            await self._source.aclose()

    def cancel(self) -> None:
        if self._source is not None:
            self._source.cancel()

    async def _send(self) -> Chunk | None:
        self._source = self._session._context.backend.stream(self._call)
        return await self._source.start()


class AsyncClientSession(_SessionBase, AsyncClosing):
    """Turns of one conversation. Close it, or use it as a context, to free its caches."""

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run the next turn to its end."""
        check_whole(options)
        async with self._turn(AsyncChunkStream, prompt, options, is_stream=False) as stream:
            return collected([chunk async for chunk in stream])

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncChunkStream:
        """Run the next turn, chunk by chunk. A turn that is not read to its end ends there."""
        return self._turn(AsyncChunkStream, prompt, options, is_stream=True)

    async def aclose(self) -> None:
        """Forget the session and free its caches. To continue it later, leave it open."""
        was_open, self._is_closed = not self._is_closed, True
        if was_open and self._is_used:
            for stream in self._running():
                await stream._end()
            # A turn of a router that is gone passes in time.
            with suppress(errors.SessionBusy):
                await self._retried(lambda: self._context.backend.end_session(self.session_id))


class ClientSession(_SessionBase, Closing):
    """Turns of one conversation. Close it, or use it as a context, to free its caches."""

    generate = blocking(AsyncClientSession.generate)
    close = blocking(AsyncClientSession.aclose)

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> ChunkStream:
        """Run the next turn, chunk by chunk. A turn that is not read to its end ends there."""
        return self._turn(ChunkStream, prompt, options, is_stream=True)
