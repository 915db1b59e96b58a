"""The seam between clients and engines: those behind a router and those of this process look alike.

Errors are those of `core.errors` on either side. A backend waits, for asyncio, or it blocks, for
threads: then its coroutines end in one step, and `blocking` makes plain methods of them.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from slipstream.client.call import (
    ClientCall,
    ClientTelemetry,
    RequestOptions,
    check_timeout,
    make_generation,
)
from slipstream.core.inline import finished
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.prompt import Prompt, PromptForm
from slipstream.core.request.request import SessionRef, check_name
from slipstream.core.request.results import Chunk, Result
from slipstream.core.request.server_info import ServerInfo

P = ParamSpec("P")
T = TypeVar("T")


class ChunkSource(Protocol):
    """One request and its answer, wherever the engines are."""

    async def start(self) -> Chunk | None:
        """Send the request. Raise what keeps it from starting; return what came until then."""
        ...

    async def read(self) -> Chunk | None:
        """Return the next chunk; None after the last one."""
        ...

    async def aclose(self) -> None:
        """End the request, and wait until an engine of this process is free."""
        ...

    def cancel(self) -> None:
        """End the request without waiting, from any thread: it may be the garbage collector's."""
        ...


class Backend(Protocol):
    """Engines, and how requests reach them."""

    address: str | None
    """Address of the router; None where the engines are in this process."""

    def with_token(self, token: str | None) -> "Backend":
        """Return the same engines over the same connection, for a caller with this token."""
        ...

    async def generate(self, call: ClientCall) -> Result:
        """Run a request to its end."""
        ...

    def stream(self, call: ClientCall) -> ChunkSource:
        """Return a request that has not started yet."""
        ...

    async def tokenize(self, prompt: Prompt, form: PromptForm, *, model: str) -> tuple[int, ...]:
        """Return the token ids of a prompt."""
        ...

    async def detokenize(self, token_ids: Sequence[int], *, model: str) -> str:
        """Return the text of token ids."""
        ...

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """Return one model, or with an empty name all of them."""
        ...

    async def server_info(self) -> ServerInfo:
        """Return the router and its replicas."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Free what is kept for a session; unknown ids are fine."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait."""
        ...

    async def aclose(self) -> None:
        """Refuse requests from now on, and end those that run."""
        ...


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Settings that all requests of a client share, those of its sessions included."""

    backend: Backend
    telemetry: ClientTelemetry
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
        address = self.backend.address
        telemetry = self.telemetry.request(generation, address=address, is_stream=is_stream)
        return ClientCall(generation, timeout_s, telemetry)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs this one to its end, on a backend that blocks."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        return finished(method(self, *args, **options))

    return run
