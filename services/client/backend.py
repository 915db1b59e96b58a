"""The seam between a client and the engines: embedded and remote ones look alike from here.

Errors are those of `core.errors` on every side.
"""

from typing import Protocol

from slipstream.client.stream import ChunkStream, Turn
from slipstream.client.surface import Call
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.core.results import Result
from slipstream.core.server_info import ServerInfo


class Backend(Protocol):
    """Engines, for threads."""

    address: str | None
    """Of the router; None where the engines are in this process."""

    def generate(self, call: Call) -> Result:
        """Run a request to its end."""
        ...

    def stream(self, call: Call) -> ChunkStream:
        """Run a request. What can be refused is, before this returns."""
        ...

    def tokenize(
        self, prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
    ) -> tuple[int, ...]:
        """Token ids of a prompt."""
        ...

    def models(self, model: str) -> tuple[ModelInfo, ...]:
        """One model, or with an empty name all of them."""
        ...

    def server_info(self) -> ServerInfo:
        """The router and its replicas."""
        ...

    def end_session(self, session_id: str) -> None:
        """Free what is kept for a session; unknown ids are fine."""
        ...

    def close(self) -> None:
        """Refuse what comes from now on."""
        ...


class AsyncBackend(Protocol):
    """The same for asyncio."""

    address: str | None

    def with_token(self, token: str | None) -> "AsyncBackend":
        """The same engines over the same connection, for a caller who shows this token."""
        ...

    async def generate(self, call: Call) -> Result:
        """See `Backend.generate`."""
        ...

    def turn(self, call: Call) -> Turn:
        """A request that runs when its first chunk is read."""
        ...

    async def tokenize(
        self, prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
    ) -> tuple[int, ...]:
        """See `Backend.tokenize`."""
        ...

    async def models(self, model: str) -> tuple[ModelInfo, ...]:
        """See `Backend.models`."""
        ...

    async def server_info(self) -> ServerInfo:
        """See `Backend.server_info`."""
        ...

    async def end_session(self, session_id: str) -> None:
        """See `Backend.end_session`."""
        ...

    async def aclose(self) -> None:
        """See `Backend.close`."""
        ...
