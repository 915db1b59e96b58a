"""Answers as they come: a caller that stops reading one frees the engines that work on it."""

from collections.abc import Awaitable, Callable
from typing import Self

from slipstream.client.backend import ChunkSource
from slipstream.client.call import NO_TELEMETRY, RequestTelemetry, named
from slipstream.core.inline import finished
from slipstream.core.request.results import Chunk


class AsyncChunkStream:
    """Chunks of one request, in order, for asyncio. Nothing is sent before the first is read.

    Reading it to its end, closing it, leaving its context or dropping it ends the request.
    """

    def __init__(
        self,
        source: ChunkSource,
        *,
        request_id: str,
        telemetry: RequestTelemetry = NO_TELEMETRY,
        on_start: "Callable[[AsyncChunkStream], None] | None" = None,
    ) -> None:
        """`on_start` is called with the stream once the request is under way."""
        self.request_id = request_id
        self.is_open = True
        """Whether there is more to read."""
        self._source = source
        self._telemetry = telemetry
        self._on_start = on_start
        self._is_started = False
        self._first: Chunk | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if not self._is_started:
            await self._start()
        if not self.is_open:
            raise StopAsyncIteration
        chunk, self._first = self._first, None
        if chunk is None:
            chunk = await self._ending_with(self._source.read())
        if chunk is None:
            await self.aclose()
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """End the request, unless it has ended."""
        if self.is_open:
            self.is_open = False
            self._telemetry.record_cancelled()
            await self._source.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._cancel()

    async def _start(self) -> None:
        """Send the request, unless it was closed before."""
        if self.is_open:
            self._is_started = True
            self._telemetry.begin()
            self._first = await self._ending_with(self._source.start())
            if self._on_start is not None:
                self._on_start(self)

    async def _ending_with(self, reading: Awaitable[Chunk | None]) -> Chunk | None:
        """Return the chunk that comes. An error ends the request, and carries its id."""
        try:
            with named(self.request_id):
                chunk = await reading
        except BaseException as error:
            self._telemetry.record_error(error)
            self._cancel()
            raise
        if chunk is not None:
            self._telemetry.record_chunk(chunk)
        return chunk

    def _cancel(self) -> None:
        if self.is_open:
            self.is_open = False
            self._telemetry.record_cancelled()
            self._source.cancel()


class ChunkStream:
    """Chunks of one request, in order.

    Reading it to its end, closing it, leaving its context or dropping it ends the request.
    """

    def __init__(self, chunks: AsyncChunkStream) -> None:
        """Send the request, whose source blocks. Raises what keeps it from starting."""
        finished(chunks._start())
        self._chunks = chunks

    @property
    def request_id(self) -> str:
        """Return the name of the request."""
        return self._chunks.request_id

    @property
    def is_open(self) -> bool:
        """Return whether there is more to read."""
        return self._chunks.is_open

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        try:
            return finished(self._chunks.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """End the request, unless it has ended."""
        finished(self._chunks.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
