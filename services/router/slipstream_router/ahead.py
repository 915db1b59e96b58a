"""The next round runs while the last one's tokens are stored and sent. One round ahead, no more."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from slipstream.core.errors import SlipstreamError
from slipstream.core.inline import ended
from slipstream.core.request.results import Continuity, Ending
from slipstream.core.run import Journal

T = TypeVar("T")


class WriteBehind:
    """A journal that is written while its request goes on. `settled` before tokens are sent."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pending: list[int] = []
        self._writing: asyncio.Task[None] | None = None
        self._error: SlipstreamError | None = None

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """See `core.run.Journal.keep`; only the last tokens are waited for here."""
        if ending is not None:
            await self.settled()
            return await self._journal.keep(tokens, ending)
        self._raise()
        self._pending += tokens
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return None

    def continuity(self) -> Continuity:
        return self._journal.continuity()

    async def settled(self) -> None:
        """Wait until everything is kept, or known not to be. Raises what `keep` does."""
        await self.finish()
        self._raise()

    async def finish(self) -> None:
        """Wait for the last write, and ignore its error."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        try:
            while self._pending:
                tokens, self._pending = self._pending, []
                await self._journal.keep(tokens, None)
        except SlipstreamError as error:
            self._error = error
        finally:
            self._writing = None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


async def one_ahead(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The items; the next one is begun before one is given out, and made meanwhile."""

    async def make() -> T | None:
        return await anext(items, None)

    async with aclosing(items):
        making = asyncio.create_task(make())
        try:
            # To await the task itself would hand every cancellation on to it.
            await asyncio.wait({making})
            while (item := making.result()) is not None:
                making = asyncio.create_task(make())
                await asyncio.sleep(0)  # in this turn of the loop the round is planned,
                await asyncio.sleep(0)  # and in this one a task sends its first message
                yield item
                await asyncio.wait({making})
        finally:
            making.cancel()
            await ended(making)
