"""A session store whose operations are timed."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slipstream.core.errors import SlipstreamError
from slipstream.state.store import Claim, Grant, Record, SessionStore, SessionUpdate, StoreLease
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments

_OK, _OTHER = "ok", "other"
R = TypeVar("R")


class WatchedStore:
    """See `SessionStore`."""

    def __init__(
        self,
        store: SessionStore,
        instruments: Instruments,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._instruments = instruments
        self._clock = clock

    async def acquire(self, claim: Claim) -> Grant:
        return await self._watched("acquire", self._store.acquire(claim))

    async def append(self, lease: StoreLease, update: SessionUpdate) -> None:
        await self._watched("append", self._store.append(lease, update))

    async def renew(self, lease: StoreLease) -> None:
        await self._watched("renew", self._store.renew(lease))

    async def release(self, lease: StoreLease, *, target: str | None, draft: str | None) -> None:
        await self._watched("release", self._store.release(lease, target=target, draft=draft))

    async def delete(self, session_id: str, owner: str) -> Record:
        return await self._watched("delete", self._store.delete(session_id, owner))

    async def count(self) -> int | None:
        return await self._store.count()

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _watched(self, operation: str, work: Awaitable[R]) -> R:
        start_s, outcome = self._clock(), _OK
        try:
            return await work
        except BaseException as error:
            outcome = type(error).__name__ if isinstance(error, SlipstreamError) else _OTHER
            raise
        finally:
            if self._instruments.are_exported:
                about = {"operation": operation, "outcome": outcome}
                self._instruments.record(catalog.STORE_DURATION, self._clock() - start_s, about)
