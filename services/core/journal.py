"""Where a request writes down what is final before anybody is told of it. Knows no store."""

from collections.abc import Sequence
from typing import Protocol

from slipstream.core.ending import Ending
from slipstream.core.results import Continuity


class Journal(Protocol):
    """One request's."""

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """Keep output tokens that follow those kept before; with the last ones, how it ended.

        Raises `SessionTaken` when another process goes on with the request.
        """
        ...

    def continuity(self) -> Continuity:
        """What became of the request so far, but for what it began with."""
        ...


class NoJournal:
    """For requests that end with this process."""

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """Keeps nothing."""

    def continuity(self) -> Continuity:
        """Nothing can become of it."""
        return Continuity()
