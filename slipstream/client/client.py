"""Clients: generate, stream, converse; with engines behind a router or in this process."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from slipstream.client.backend import (
    AsyncChunkStream,
    AsyncClosing,
    Backend,
    ChunkStream,
    ClientContext,
    Closing,
    S,
    blocking,
)
from slipstream.client.call import RequestOptions, check_whole, named, only_model
from slipstream.client.session import AsyncClientSession, ClientSession
from slipstream.core.errors import check_token_ids
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.prompt import Prompt, PromptForm
from slipstream.core.request.results import Result
from slipstream.core.request.server_info import ServerInfo
from slipstream.core.request.tools import Tool, tools_of

if TYPE_CHECKING:
    from slipstream.rpc.security import ClientTls
    from slipstream.telemetry.sdk_spans import SdkTelemetry

DEFAULT_TIMEOUT_S = 600.0
"""Time limit of requests to a router: no call waits for ever."""


def _application_telemetry() -> "SdkTelemetry | None":
    """Return telemetry by the application's OpenTelemetry, loaded only where that is set up."""
    return _sdk_telemetry() if "opentelemetry" in sys.modules else None


@cache
def _sdk_telemetry() -> "SdkTelemetry":
    from slipstream.telemetry.sdk_spans import SdkTelemetry

    return SdkTelemetry()


class _ClientBase:
    """Clients for asyncio and for threads: how they are made, and what they share."""

    _is_blocking: ClassVar[bool]
    """True for a backend that blocks."""

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
        """Make a client of the router at `address`; nothing is sent before the first request.

        `address` is HOST:PORT, several IP:PORT with commas between, or dns:///NAME:PORT; requests
        take turns on the routers that answer. `tls` is what to trust, True the system's
        authorities. `token` is a bearer token; without TLS it goes to this machine only, or
        anywhere with `tls=False`. `timeout_s` bounds every request, `model` is that of requests
        that name none. `retries` sends a request again whose connection broke, to continue where
        it was. Raises `InvalidRequest`.
        """
        from slipstream.client.connection import connection
        from slipstream.client.remote import RemoteBackend

        to = connection(address, token=token, tls=tls, retries=retries)
        backend = RemoteBackend(to, timeout_s, to.channel(is_blocking=self._is_blocking))
        self._context = ClientContext(backend, _application_telemetry, model or "", timeout_s)

    @classmethod
    def embedded(  # noqa: PLR0913 - a keyword for each thing that can be chosen
        cls,
        target: str = "smollm2-135m-q4_1",
        draft: str = "glide",
        *,
        dtype: str = "auto",
        numerics: str = "auto",
        threads: int | None = None,
        device: str = "cpu",
        kv_memory: str = "auto",
        profile: str | PathLike[str] | None = None,
        ngrams: str | PathLike[str] = "auto",
    ) -> Self:
        """Return a client of engines in this process, once the models are loaded.

        `target` is an alias, path or hub id; `draft` is glide, ngram, none, vanilla:MODEL,
        eagle3:HEAD (a directory or hub id) or a directory of GliDe weights; `kv_memory` is what the
        keys and values of each of the two may take, a size ("2GiB") or a share of what is free
        ("0.5"); `profile` is a file of `slipstream calibrate`, in place of the draft's own profile;
        `ngrams` is a store of `slipstream train ngrams`, auto for the one that is shipped or none.
        Raises `ModelError`, `InvalidRequest`, or `CapacityError` where the memory holds nothing.
        """
        from slipstream.client.embedded import AsyncEmbedded, Embedded
        from slipstream.client.engine import EngineOptions

        options = EngineOptions(dtype, numerics, threads, device, kv_memory, ngrams=str(ngrams))
        engines = Embedded if cls._is_blocking else AsyncEmbedded
        path = None if profile is None else Path(profile)
        return cls.of(engines.load(target, draft, options, profile=path))

    @classmethod
    def of(cls, backend: Backend, *, telemetry: "SdkTelemetry | None" = None) -> Self:
        """Return a client of engines that are there already; they close with it.

        Requests are recorded by `telemetry`, by default the application's.
        """
        return cls._in(
            ClientContext(backend, (lambda: telemetry) if telemetry else _application_telemetry)
        )

    @classmethod
    def _in(cls, context: ClientContext) -> Self:
        client = cls.__new__(cls)
        client._context = context
        return client

    def _stream(self, kind: type[S], prompt: Prompt, options: RequestOptions) -> S:
        call = self._context.call(prompt, options, is_stream=True)
        source = self._context.backend.stream(call)
        return kind(source, request_id=call.request_id, telemetry=call.telemetry)


class AsyncClient(_ClientBase, AsyncClosing):
    """Generates text with a draft and a target: `AsyncClient(address)`, or `.embedded(...)`.

    Belongs to one event loop. Any number of its requests may run at once; on embedded engines they
    share steps, computed on a thread of their own.
    """

    _is_blocking = False

    def with_token(self, token: str | None) -> Self:
        """Return the same client with another bearer token, or with none.

        It shares the connection: closing either of the two closes both. Raises `InvalidRequest`
        for a token in the clear, and on an embedded client.
        """
        backend = self._context.backend.with_token(token)
        return self._in(replace(self._context, backend=backend))

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run one request to its end. See `stream`."""
        check_whole(options)
        call = self._context.call(prompt, options, is_stream=False)
        call.telemetry.begin()
        try:
            with named(call.request_id):
                result = await self._context.backend.generate(call)
        except BaseException as error:
            call.telemetry.record_error(error)
            raise
        call.telemetry.record_result(result)
        return result

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncChunkStream:
        """Return chunks of text as they become final, for `async for`.

        The request starts, and fails, with the first chunk. A stream that is not read to its end
        is cancelled when it is closed or dropped.
        """
        return self._stream(AsyncChunkStream, prompt, options)

    def session(self, session_id: str | None = None, *, is_new: bool = False) -> AsyncClientSession:
        """Return a conversation: each request continues the ones before, and their caches stay.

        An id continues a session that was left open, or names one `is_new`; by default a new one
        begins under a random id.
        """
        return AsyncClientSession(self._context, session_id, is_new=is_new)

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        allow_special_tokens: bool = False,
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """Return the token ids of a prompt, as a request with it would use them."""
        own = json.dumps(chat_template_kwargs) if chat_template_kwargs else ""
        form = PromptForm(raw, allow_special_tokens, tools_of(tools), chat_template_kwargs=own)
        model = model or self._context.model
        return await self._context.backend.tokenize(prompt, form, model=model)

    async def detokenize(self, token_ids: Sequence[int], *, model: str | None = None) -> str:
        """Return the text of token ids as answers have it: without special tokens."""
        check_token_ids("the text", token_ids)
        return await self._context.backend.detokenize(token_ids, model=model or self._context.model)

    async def model_info(self, model: str | None = None) -> ModelInfo:
        """Return what a model can do, and its limits. Name it where there are several."""
        context = self._context
        return only_model(await context.backend.models(model or context.model))

    async def models(self) -> tuple[ModelInfo, ...]:
        """Return all models, by name."""
        return await self._context.backend.models("")

    async def server_info(self) -> ServerInfo:
        """Return the router and its replicas. Raises `InvalidRequest` on an embedded client."""
        return await self._context.backend.server_info()

    async def aclose(self) -> None:
        """Refuse requests from now on, with `SessionClosed`; those that run are cancelled."""
        await self._context.backend.aclose()


class Client(_ClientBase, Closing):
    """Generates text with a draft and a target: `Client(address)`, or `Client.embedded(...)`.

    A client of a router may be shared by threads; an embedded one is for one thread at a time.
    """

    _is_blocking = True

    generate = blocking(AsyncClient.generate)
    tokenize = blocking(AsyncClient.tokenize)
    detokenize = blocking(AsyncClient.detokenize)
    model_info = blocking(AsyncClient.model_info)
    models = blocking(AsyncClient.models)
    server_info = blocking(AsyncClient.server_info)
    close = blocking(AsyncClient.aclose)

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> ChunkStream:
        """Return chunks of text as they become final.

        `prompt` is text (a user message; as it is when `raw`), messages, or token ids. Greedy by
        default. Raises `InvalidRequest` and what else keeps a request from starting before it
        returns; a stream that is not read to its end is cancelled when it is closed or dropped.
        """
        return self._stream(ChunkStream, prompt, options)

    def session(self, session_id: str | None = None, *, is_new: bool = False) -> ClientSession:
        """Return a conversation, as `AsyncClient.session` does."""
        return ClientSession(self._context, session_id, is_new=is_new)
