"""The client for asyncio: the same surface as `Client`, with `await`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from slipstream.client.client import DEFAULT_TIMEOUT_S
from slipstream.client.conversation import PAUSES_S, Conversation, new_session_id
from slipstream.client.stream import AsyncChunkStream, Turn
from slipstream.client.surface import (
    Call,
    Defaults,
    RequestOptions,
    beginning,
    check_whole,
    make_call,
    only_model,
)
from slipstream.client.watch import Watcher
from slipstream.client.watcher import ApplicationWatcher, watched
from slipstream.core.errors import SessionBusy, SessionError, SessionExists
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.core.results import Chunk, Result, collected
from slipstream.core.server_info import ServerInfo

if TYPE_CHECKING:
    from slipstream.client.backend import AsyncBackend
    from slipstream.rpc.security import ClientTls

T = TypeVar("T")


class AsyncClient:
    """Generates text with a draft and a target: `AsyncClient(address)`, or `.embedded(...)`.

    Belongs to one event loop. Any number of its requests may run at once; on embedded engines they
    share steps, computed on a thread of their own.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: "ClientTls | bool | None" = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        model: str | None = None,
        retries: bool = True,
    ) -> None:
        """See `Client`."""
        from slipstream.client.connection import connection
        from slipstream.client.remote_aio import AsyncRemote

        self._defaults = Defaults(model or "", timeout_s)
        self._watcher: Watcher = ApplicationWatcher()
        self._backend: AsyncBackend = AsyncRemote(
            connection(address, token=token, tls=tls, retries=retries), timeout_s
        )

    @classmethod
    def embedded(  # noqa: PLR0913 - a keyword for each thing that can be chosen
        cls,
        target: str = "smollm2-135m",
        draft: str = "glide",
        *,
        dtype: str = "auto",
        numerics: str = "invariant",
        threads: int | None = None,
        device: str = "cpu",
        kv_memory: str = "auto",
        profile: str | PathLike[str] | None = None,
        ngrams: str | PathLike[str] = "auto",
    ) -> Self:
        """See `Client.embedded`. Loads the models before it returns, so best before the loop."""
        from slipstream.client.embedded_aio import AsyncEmbedded
        from slipstream.client.engine import EngineOptions

        options = EngineOptions(
            dtype,
            numerics,  # type: ignore[arg-type]  # which it checks
            threads,
            device,
            kv_memory,
            ngrams=str(ngrams),
        )
        path = None if profile is None else Path(profile)
        return cls.of(AsyncEmbedded.load(target, draft, options, profile=path))

    @classmethod
    def of(cls, backend: "AsyncBackend", *, watcher: Watcher | None = None) -> Self:
        """A client of engines that are there already; they close with it. See `Client.of`."""
        client = cls.__new__(cls)
        client._defaults, client._backend = Defaults(), backend
        client._watcher = watcher or ApplicationWatcher()
        return client

    def with_token(self, token: str | None) -> Self:
        """The same client for another caller, who shows this token; None shows none.

        It shares the connection: closing either of the two closes both. Raises `InvalidRequest`
        for a token in the clear, and on an embedded client.
        """
        client = self.of(self._backend.with_token(token), watcher=self._watcher)
        client._defaults = self._defaults
        return client

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run one request to its end. See `stream`."""
        check_whole(options)
        call = self._call(prompt, options, is_stream=False)
        with beginning(call):
            result = await self._backend.generate(call)
        call.watch.answered(result)
        return result

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncChunkStream:
        """Chunks of text as they become final, for `async for`.

        The request starts, and fails, with the first chunk. A stream that is not read to its end
        is cancelled when it is closed or dropped.
        """
        call = self._call(prompt, options, is_stream=True)
        turn = self._backend.turn(call)
        return AsyncChunkStream(turn, request_id=call.request_id, watch=call.watch)

    def session(self, session_id: str | None = None) -> "AsyncClientSession":
        """A conversation: each request goes on from the ones before, and their caches stay.

        An id goes on with a session that was left open; by default a new one begins.
        """
        return AsyncClientSession(self._backend, self._defaults, session_id, watcher=self._watcher)

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        allow_special_tokens: bool = False,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a prompt, as a request with it would use them."""
        model = model or self._defaults.model
        return await self._backend.tokenize(
            prompt, raw=raw, allow_special_tokens=allow_special_tokens, model=model
        )

    async def model_info(self, model: str | None = None) -> ModelInfo:
        """What a model can be asked for, and its limits. Name it where there are several."""
        return only_model(await self._backend.models(model or self._defaults.model))

    async def models(self) -> tuple[ModelInfo, ...]:
        """All models that can be asked, by name."""
        return await self._backend.models("")

    async def server_info(self) -> ServerInfo:
        """The router and its replicas. Raises `InvalidRequest` on an embedded client."""
        return await self._backend.server_info()

    async def aclose(self) -> None:
        """Refuse requests from now on, with `SessionClosed`; those that run are cancelled."""
        await self._backend.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _call(self, prompt: Prompt, options: RequestOptions, *, is_stream: bool) -> Call:
        call = make_call(prompt, options, self._defaults)
        return watched(call, self._watcher, address=self._backend.address, is_stream=is_stream)


class AsyncClientSession:
    """Turns of one conversation. Close it, or use it as a context, to free its caches."""

    def __init__(
        self,
        backend: "AsyncBackend",
        defaults: Defaults,
        session_id: str | None,
        *,
        watcher: Watcher,
    ) -> None:
        self._backend = backend
        self._defaults = defaults
        self._watcher = watcher
        self._conversation: Conversation[_SessionTurn] = Conversation(
            session_id or new_session_id(), session_id is not None
        )

    @property
    def session_id(self) -> str:
        """The conversation's name: whoever knows it can go on with it."""
        return self._conversation.session_id

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run the next turn to its end."""
        check_whole(options)
        async with self._begun(prompt, options, is_stream=False) as stream:
            return collected([chunk async for chunk in stream])

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncChunkStream:
        """The next turn, chunk by chunk. A turn that is not read to its end ends there."""
        return self._begun(prompt, options, is_stream=True)

    async def aclose(self) -> None:
        """Forget the session and free its caches. To go on with it later, leave it open."""
        at = self._conversation
        if at.close():
            for turn in at.running:
                await turn.aclose()
            with suppress(SessionBusy):  # with a turn of a router that is gone: it passes in time
                await _patiently(at, lambda: self._backend.end_session(self.session_id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begun(
        self, prompt: Prompt, options: RequestOptions, *, is_stream: bool
    ) -> AsyncChunkStream:
        at, address = self._conversation, self._backend.address
        call = make_call(prompt, options, self._defaults, session=at.ref())
        call = watched(call, self._watcher, address=address, is_stream=is_stream)
        turn = _SessionTurn(self._backend, at, call)
        return AsyncChunkStream(turn, request_id=call.request_id, watch=call.watch)


class _SessionTurn:
    """A turn that tells the conversation when it has begun."""

    def __init__(
        self, backend: "AsyncBackend", conversation: "Conversation[_SessionTurn]", call: Call
    ) -> None:
        self._backend = backend
        self._conversation = conversation
        self._call = call
        self._turn: Turn | None = None
        self.is_open = True

    async def read(self) -> Chunk | None:
        """See `Turn.read`. None also after the session was closed."""
        if not self.is_open:
            return None
        if self._turn is not None:
            return await self._turn.read()
        at = self._conversation
        try:
            chunk = await _patiently(at, lambda: self._first(self._call))
        except SessionExists:
            if at.is_begun:
                raise
            chunk = await self._first(at.resumed(self._call))
        at.begun(self)
        return chunk

    async def aclose(self) -> None:
        """See `Turn.aclose`."""
        self.is_open = False
        self._call.watch.left()
        if self._turn is not None:
            await self._turn.aclose()

    def cancel(self) -> None:
        """See `Turn.cancel`."""
        self.is_open = False
        if self._turn is not None:
            self._turn.cancel()

    async def _first(self, call: Call) -> Chunk | None:
        self._turn = self._backend.turn(call)
        return await self._turn.read()


async def _patiently(at: Conversation[_SessionTurn], run: Callable[[], Awaitable[T]]) -> T:
    """Wait out what passes by itself; a turn that still runs is `SessionBusy` at once."""
    for pause_s in PAUSES_S:
        try:
            return await run()
        except SessionError as error:
            if not at.may_pass(error):
                raise
            await asyncio.sleep(pause_s)
    return await run()
