"""The client for threads: generate, stream, converse. Where engines live is decided at birth."""

import time
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from slipstream.client.conversation import PAUSES_S, Conversation, new_session_id
from slipstream.client.stream import ChunkStream
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
from slipstream.core.results import Result, collected
from slipstream.core.server_info import ServerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.client.backend import Backend
    from slipstream.rpc.security import ClientTls

DEFAULT_TIMEOUT_S = 600.0
"""Of requests to a router: no call waits for ever."""

T = TypeVar("T")


class Client:
    """Generates text with a draft and a target: `Client(address)`, or `Client.embedded(...)`.

    A client of a router may be shared by threads; an embedded one is for one thread at a time.
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
        """Make a client of the router at `address`; nothing is sent before the first request.

        `address` is HOST:PORT, several IP:PORT with commas between, or dns:///NAME:PORT; requests
        take turns on the routers that answer. `tls` says whom to trust, True the system's
        authorities. `token` is a bearer token; without TLS it goes to this machine only, or
        anywhere with `tls=False`. `timeout_s` bounds every request, `model` is the one asked by
        default. `retries` sends a request again whose connection broke, to go on where it was.
        Raises `InvalidRequest`.
        """
        from slipstream.client.connection import connection
        from slipstream.client.remote import Remote

        self._defaults = Defaults(model or "", timeout_s)
        self._watcher: Watcher = ApplicationWatcher()
        self._backend: Backend = Remote(
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
        """Both engines in this process.

        `target` is an alias, path or hub id; `draft` is glide, ngram, none, vanilla:MODEL or a
        directory of GliDe weights; `kv_memory` is what the keys and values of each of the two may
        take, a size ("2GiB") or a share of what is free ("0.5"); `profile` is a file of
        `slipstream calibrate`, in place of the draft's own profile; `ngrams` is a store of
        `slipstream train ngrams`, auto for the one that is shipped or none. Raises `ModelError`,
        `InvalidRequest`, or `CapacityError` where the memory holds nothing.
        """
        from slipstream.client.embedded import Embedded
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
        return cls.of(Embedded.load(target, draft, options, profile=path))

    @classmethod
    def of(cls, backend: "Backend", *, watcher: Watcher | None = None) -> Self:
        """A client of engines that are there already.

        The `watcher` is told of its requests, by default the application's telemetry.
        """
        client = cls.__new__(cls)
        client._defaults = Defaults()
        client._watcher = watcher or ApplicationWatcher()
        client._backend = backend
        return client

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run one request to its end. See `stream`."""
        check_whole(options)
        call = self._call(prompt, options, is_stream=False)
        with beginning(call):
            result = self._backend.generate(call)
        call.watch.answered(result)
        return result

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> ChunkStream:
        """Chunks of text as they become final.

        `prompt` is text (a user message; as it is when `raw`), messages, or token ids. Greedy by
        default. Raises `InvalidRequest` and what else keeps a request from starting before it
        returns; a stream that is not read to its end is cancelled when it is closed or dropped.
        """
        call = self._call(prompt, options, is_stream=True)
        with beginning(call):
            return self._backend.stream(call).watched(call.watch)

    def session(self, session_id: str | None = None) -> "ClientSession":
        """A conversation: each request goes on from the ones before, and their caches stay.

        An id goes on with a session that was left open; by default a new one begins.
        """
        return ClientSession(self._backend, self._defaults, session_id, watcher=self._watcher)

    def tokenize(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        allow_special_tokens: bool = False,
        model: str | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a prompt, as a request with it would use them."""
        model = model or self._defaults.model
        return self._backend.tokenize(
            prompt, raw=raw, allow_special_tokens=allow_special_tokens, model=model
        )

    def model_info(self, model: str | None = None) -> ModelInfo:
        """What a model can be asked for, and its limits. Name it where there are several."""
        return only_model(self._backend.models(model or self._defaults.model))

    def models(self) -> tuple[ModelInfo, ...]:
        """All models that can be asked, by name."""
        return self._backend.models("")

    def server_info(self) -> ServerInfo:
        """The router and its replicas. Raises `InvalidRequest` on an embedded client."""
        return self._backend.server_info()

    def close(self) -> None:
        """Refuse requests from now on, with `SessionClosed`; a router's calls are cancelled."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, prompt: Prompt, options: RequestOptions, *, is_stream: bool) -> Call:
        call = make_call(prompt, options, self._defaults)
        return watched(call, self._watcher, address=self._backend.address, is_stream=is_stream)


class ClientSession:
    """Turns of one conversation. Close it, or use it as a context, to free its caches."""

    def __init__(
        self, backend: "Backend", defaults: Defaults, session_id: str | None, *, watcher: Watcher
    ) -> None:
        self._backend = backend
        self._defaults = defaults
        self._watcher = watcher
        self._conversation: Conversation[ChunkStream] = Conversation(
            session_id or new_session_id(), session_id is not None
        )

    @property
    def session_id(self) -> str:
        """The conversation's name: whoever knows it can go on with it."""
        return self._conversation.session_id

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Result:
        """Run the next turn to its end."""
        check_whole(options)
        with self._begun(prompt, options, is_stream=False) as chunks:
            return collected(chunks)

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> ChunkStream:
        """The next turn, chunk by chunk. A turn that is not read to its end ends there."""
        return self._begun(prompt, options, is_stream=True)

    def close(self) -> None:
        """Forget the session and free its caches. To go on with it later, leave it open."""
        if self._conversation.close():
            for chunks in self._conversation.running:
                chunks.close()
            with suppress(SessionBusy):  # with a turn of a router that is gone: it passes in time
                self._patiently(lambda: self._backend.end_session(self.session_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begun(self, prompt: Prompt, options: RequestOptions, *, is_stream: bool) -> ChunkStream:
        at, address = self._conversation, self._backend.address
        call = make_call(prompt, options, self._defaults, session=at.ref())
        call = watched(call, self._watcher, address=address, is_stream=is_stream)
        with beginning(call):
            try:
                chunks = self._patiently(lambda: self._backend.stream(call))
            except SessionExists:
                if at.is_begun:
                    raise
                chunks = self._backend.stream(at.resumed(call))
        at.begun(chunks)
        return chunks.watched(call.watch)

    def _patiently(self, run: "Callable[[], T]") -> T:
        """Wait out what passes by itself; a turn that still runs is `SessionBusy` at once."""
        for pause_s in PAUSES_S:
            try:
                return run()
            except SessionError as error:
                if not self._conversation.may_pass(error):
                    raise
                time.sleep(pause_s)
        return run()
