"""The seam between clients and engines: those behind a router and those of this process look alike.

Errors are those of `core.errors` on either side. A backend waits, for asyncio, or it blocks, for
threads: then its coroutines end in one step, and `blocking` makes plain methods of them.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from slipstream.client.call import (
    NO_TELEMETRY,
    ClientCall,
    NoTelemetry,
    RequestOptions,
    check_timeout,
    make_generation,
    named,
)
from slipstream.core.inline import finished
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.prompt import Prompt, PromptForm
from slipstream.core.request.request import SessionRef, check_name
from slipstream.core.request.results import Chunk, Result
from slipstream.core.request.server_info import ServerInfo

if TYPE_CHECKING:
    from slipstream.telemetry.sdk_spans import SdkSpan, SdkTelemetry

P = ParamSpec("P")
T = TypeVar("T")


class ChunkSource(Protocol):
    """One request and its answer, wherever the engines are."""

    async def start(self) -> Chunk | None:
        """Send the request. Raise what keeps it from starting; return what came until then."""

    async def read(self) -> Chunk | None:
        """Return the next chunk; None after the last one."""

    async def aclose(self) -> None:
        """End the request, and wait until an engine of this process is free."""

    def cancel(self) -> None:
        """End the request without waiting, from any thread: it may be the garbage collector's."""


class Backend(Protocol):
    """Engines, and how requests reach them."""

    address: str | None
    """Address of the router; None where the engines are in this process."""

    def with_token(self, token: str | None) -> "Backend":
        """Return the same engines over the same connection, for a caller with this token."""

    async def generate(self, call: ClientCall) -> Result:
        """Run a request to its end."""

    def stream(self, call: ClientCall) -> ChunkSource:
        """Return a request that has not started yet."""

    async def tokenize(self, prompt: Prompt, form: PromptForm, *, model: str) -> tuple[int, ...]:
        """Return the token ids of a prompt."""

    async def detokenize(self, token_ids: Sequence[int], *, model: str) -> str:
        """Return the text of token ids."""

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """Return one model, or with an empty name all of them."""

    async def server_info(self) -> ServerInfo:
        """Return the router and its replicas."""

    async def end_session(self, session_id: str) -> None:
        """Free what is kept for a session; unknown ids are fine."""

    async def pause(self, seconds: float) -> None:
        """Wait."""

    async def aclose(self) -> None:
        """Refuse requests from now on, and end those that run."""


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Settings that all requests of a client share, those of its sessions included."""

    backend: Backend
    telemetry: Callable[[], "SdkTelemetry | None"]
    """Returns the telemetry of requests, where there is any by now."""
    model: str = ""
    """Model of requests that name none; empty for the only one."""
    timeout_s: float | None = None
    """Time limit of requests that give none."""

    def __post_init__(self) -> None:
        check_name("model", self.model)
        check_timeout(self.timeout_s)

    def call(
        self,
        prompt: Prompt,
        options: RequestOptions,
        *,
        is_stream: bool,
        session: SessionRef | None = None,
    ) -> ClientCall:
        """Return a request with telemetry of its own. Raises `InvalidRequest`."""
        generation = make_generation(prompt, options, self.model, session)
        timeout_s = options.get("timeout_s", self.timeout_s)
        check_timeout(timeout_s)
        telemetry, address = self.telemetry(), self.backend.address
        if telemetry is None:
            return ClientCall(generation, timeout_s)
        span = telemetry.request(generation, address=address, is_stream=is_stream)
        return ClientCall(generation, timeout_s, span)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs this one to its end, on a backend that blocks."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return finished(method(self, *args, **options))

    return run


class AsyncClosing:
    """A context that ends by closing."""

    async def aclose(self) -> None:
        """Close it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Closing:
    """See `AsyncClosing`."""

    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RequestStream:
    """One request whose chunks are read one by one. Dropping it ends the request."""

    def __init__(
        self,
        source: ChunkSource,
        *,
        request_id: str,
        telemetry: "SdkSpan | NoTelemetry" = NO_TELEMETRY,
        on_start: "Callable[[RequestStream], None] | None" = None,
    ) -> None:
        """`on_start` is called with the stream once the request is under way."""
        self.request_id = request_id
        self.is_open = True
        """True while there is more to read."""
        self._source = source
        self._telemetry = telemetry
        self._on_start = on_start
        self._is_started = False
        self._first: Chunk | None = None

    async def _next(self) -> Chunk | None:
        if not self._is_started:
            await self._start()
        if not self.is_open:
            return None
        chunk, self._first = self._first, None
        if chunk is None:
            chunk = await self._ending_with(self._source.read())
        if chunk is None:
            await self._end()
        return chunk

    async def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._telemetry.record_cancelled()
            await self._source.aclose()

    def __del__(self) -> None:
        self._cancel()

    async def _start(self) -> None:
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


class AsyncChunkStream(RequestStream, AsyncClosing):
    """Chunks of one request, in order, for asyncio. Nothing is sent before the first is read.

    Reading it to its end, closing it, leaving its context or dropping it ends the request.
    """

    async def aclose(self) -> None:
        """End the request, unless it has ended."""
        await self._end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if (chunk := await self._next()) is None:
            raise StopAsyncIteration
        return chunk


class ChunkStream(RequestStream, Closing):
    """Chunks of one request, in order. See `AsyncChunkStream`; this one blocks."""

    close = blocking(AsyncChunkStream.aclose)

    def __init__(self, *source: Any, **about: Any) -> None:
        """Send the request, whose source blocks. Raises what keeps it from starting."""
        super().__init__(*source, **about)
        finished(self._start())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if (chunk := finished(self._next())) is None:
            raise StopIteration
        return chunk


S = TypeVar("S", AsyncChunkStream, ChunkStream)
