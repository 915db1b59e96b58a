"""Renews session leases of running requests, and stores their tokens: a round behind, and late
where the store was silent."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from slipstream.core.errors import SlipstreamError, Unavailable
from slipstream.core.inline import beside
from slipstream.core.request.results import Continuity, Ending
from slipstream.core.run import Journal
from slipstream.state.journal import StoreJournal
from slipstream.state.session_leases import AcquiredSession

BEAT_S = 0.5
_LOG = logging.getLogger("slipstream.router")


@dataclass(slots=True)
class KvLocation:
    """Addresses of the replicas that keep a session's keys and values for its next turn."""

    target: str | None = None
    draft: str | None = None


@dataclass(eq=False, kw_only=True)
class LeaseKeeper:
    """Keeper of the session leases of one router; `aclose` it.

    Leases are renewed several times in `lease_s`. What a request could not have kept by its end is
    tried again for `retry_s`, while all that takes no more than `max_late_bytes`.
    """

    lease_s: float
    retry_s: float = 60.0
    max_late_bytes: int = 256 << 20
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    _num_late_bytes: int = 0
    _late: set[asyncio.Task[None]] = field(default_factory=set)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def acquired(self, acquiring: Coroutine[Any, Any, AcquiredSession]) -> AcquiredSession:
        """Return the acquired session; a caller that leaves meanwhile leaves no lease behind."""
        task = asyncio.get_running_loop().create_task(acquiring)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._own(self._give_back(task))
            raise

    @asynccontextmanager
    async def kept(self, journal: StoreJournal) -> AsyncIterator[KvLocation]:
        """Keep the journal's lease, then give its session back with the location that was set."""
        location = KvLocation()
        try:
            async with beside(self._renew(journal)):
                yield location
        finally:
            closing = self._own(self._close(journal, location))
            await asyncio.shield(closing)  # a caller that leaves must not leave the session busy

    async def aclose(self) -> None:
        """Try once more to keep what is not kept, and end."""
        self._is_over.set()
        while self._late:
            await asyncio.gather(*self._late)

    async def _renew(self, journal: StoreJournal) -> None:
        beats_per_renewal = max(round(self.lease_s / 3 / BEAT_S), 1)
        for num_beats in count(1):
            await self.pause(BEAT_S)
            if journal.is_behind or num_beats % beats_per_renewal == 0:
                with suppress(Unavailable):
                    await journal.tend()

    async def _close(self, journal: StoreJournal, location: KvLocation) -> None:
        if await journal.close(target=location.target, draft=location.draft):
            return
        if self._num_late_bytes + journal.num_bytes > self.max_late_bytes:
            _LOG.error("too much waits for the store: what a request said last is not kept")
            return
        self._num_late_bytes += journal.num_bytes
        closing = self._own(self._close_later(journal, location))
        closing.add_done_callback(lambda _: self._forget_late(journal.num_bytes))

    def _forget_late(self, num_bytes: int) -> None:
        self._num_late_bytes -= num_bytes

    async def _give_back(self, task: asyncio.Task[AcquiredSession]) -> None:
        await asyncio.wait({task})
        if task.cancelled() or task.exception() is not None:
            return
        record, journal = task.result()
        if journal is not None:
            await self._close(journal, KvLocation(record.target, record.draft))

    async def _close_later(self, journal: StoreJournal, location: KvLocation) -> None:
        for _ in range(max(round(self.retry_s / BEAT_S), 1)):
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._is_over.wait()
            if await journal.close(target=location.target, draft=location.draft):
                return
            if self._is_over.is_set():
                break
        _LOG.error("the store has not answered for long: what a request said last is not kept")

    def _own(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task


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
