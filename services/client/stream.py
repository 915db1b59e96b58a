"""Answers as they come. Whoever stops reading one frees the engines that work on it.

Knows neither where the engines live nor how they are reached.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, Self

from slipstream.client.surface import naming
from slipstream.client.watch import UNWATCHED, Watch
from slipstream.core.results import Chunk


class ChunkStream:
    """Chunks of one request, in order.

    Reading it to its end, closing it, leaving its context or dropping it ends the request.
    """

    def __init__(
        self,
        chunks: Iterator[Chunk],
        end: Callable[[], object],
        *,
        request_id: str,
        first: Chunk | None = None,
    ) -> None:
        """`end` is called once, whatever ends the stream; `first` is what has come already."""
        self.request_id = request_id
        self._first = first
        self._watch: Watch = UNWATCHED
        self._chunks = chunks
        self._end = end
        self.is_open = True
        """Whether there is more to read."""

    def watched(self, watch: Watch) -> Self:
        """The same stream, whose request is under way; from now on the watch is told of it."""
        self._watch = watch
        if self._first is not None:
            watch.received(self._first)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if not self.is_open:
            raise StopIteration
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            with naming(self.request_id):
                chunk = next(self._chunks)
        except BaseException as error:
            if not isinstance(error, StopIteration):
                self._watch.failed(error)
            self.close()
            raise
        self._watch.received(chunk)
        return chunk

    def close(self) -> None:
        """End the request, unless it has ended."""
        if self.is_open:
            self.is_open = False
            self._watch.left()
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Turn(Protocol):
    """One request's answer where it comes from, for asyncio."""

    async def read(self) -> Chunk | None:
        """The next chunk; None after the last one."""
        ...

    async def aclose(self) -> None:
        """End it, and wait until the engine here, if any, is free."""
        ...

    def cancel(self) -> None:
        """End it without waiting; an ended one stays as it is."""
        ...


class AsyncChunkStream:
    """Chunks of one request, in order, for asyncio. Nothing is sent before the first is asked for.

    Reading it to its end, closing it, leaving its context or dropping it ends the request.
    """

    def __init__(self, turn: Turn, *, request_id: str, watch: Watch = UNWATCHED) -> None:
        self.request_id = request_id
        self._watch = watch
        self._turn = turn
        self.is_open = True
        """Whether there is more to read."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if not self.is_open:
            raise StopAsyncIteration
        self._watch.begin()
        try:
            with naming(self.request_id):
                chunk = await self._turn.read()
        except BaseException as error:
            self._watch.failed(error)
            self._drop()
            raise
        if chunk is None:
            await self.aclose()
            raise StopAsyncIteration
        self._watch.received(chunk)
        return chunk

    async def aclose(self) -> None:
        """End the request, unless it has ended."""
        if self.is_open:
            self.is_open = False
            self._watch.left()
            await self._turn.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self.is_open:
            self.is_open = False
            self._watch.left()
            self._turn.cancel()
