"""What a client tells of its requests to whoever watches them: the seam to telemetry.

Knows no telemetry: applications that have none loaded load none.
"""

from typing import Protocol

from slipstream.core.request import Generation
from slipstream.core.results import Chunk, Result


class Watch(Protocol):
    """Of one request. Nothing of what is told changes it; after its end nothing counts."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """What its calls carry, so that services know whose part they are."""
        ...

    def begin(self) -> None:
        """It is about to be sent."""
        ...

    def received(self, chunk: Chunk) -> None:
        """A part of its answer has come; it ends with the last one."""
        ...

    def answered(self, result: Result) -> None:
        """All of its answer has come at once: the end."""
        ...

    def resumed(self, num_received: int) -> None:
        """It broke off, and is sent again for what follows so many tokens."""
        ...

    def failed(self, error: BaseException) -> None:
        """It came to this end."""
        ...

    def left(self) -> None:
        """Nobody reads on: the end, if there was none."""
        ...


class Watcher(Protocol):
    """Of a client."""

    def watch(self, asked: Generation, *, address: str | None, is_stream: bool) -> Watch:
        """A request that is about to be made, of the router there or of engines in this process."""
        ...


class Unwatched:
    """Nobody is told."""

    headers: tuple[tuple[str, str], ...] = ()

    def begin(self) -> None:
        """See `Watch.begin`."""

    def received(self, chunk: Chunk) -> None:
        """See `Watch.received`."""

    def answered(self, result: Result) -> None:
        """See `Watch.answered`."""

    def resumed(self, num_received: int) -> None:
        """See `Watch.resumed`."""

    def failed(self, error: BaseException) -> None:
        """See `Watch.failed`."""

    def left(self) -> None:
        """See `Watch.left`."""


UNWATCHED = Unwatched()
