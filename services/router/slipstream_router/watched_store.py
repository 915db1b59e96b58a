"""A session store whose operations are timed, and seen in the traces of their requests."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slipstream.core.errors import SlipstreamError
from slipstream.state.record import Claim, Grant, Record, SessionUpdate, StoreLease
from slipstream.state.store import SessionStore
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments
from slipstream.telemetry.request_span import current_request

REDIS, MEMORY = "redis", "memory"
_OK = "ok"
R = TypeVar("R")


class WatchedStore:
    """See `SessionStore`."""

    def __init__(
        self,
        store: SessionStore,
        instruments: Instruments,
        *,
        system: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`system` is where sessions are, redis or memory."""
        self._store = store
        self._instruments = instruments
        self._system = system
        self._clock = clock

    async def acquire(self, claim: Claim) -> Grant:
        """See `SessionStore`."""
        return await self._watched("acquire", self._store.acquire(claim))

    async def append(self, lease: StoreLease, update: SessionUpdate) -> None:
        """See `SessionStore`."""
        await self._watched("append", self._store.append(lease, update))

    async def renew(self, lease: StoreLease) -> None:
        """See `SessionStore`."""
        await self._watched("renew", self._store.renew(lease))

    async def release(self, lease: StoreLease, *, target: str | None, draft: str | None) -> None:
        """See `SessionStore`."""
        await self._watched("release", self._store.release(lease, target=target, draft=draft))

    async def delete(self, session_id: str, owner: str) -> Record:
        """See `SessionStore`."""
        return await self._watched("delete", self._store.delete(session_id, owner))

    async def count(self) -> int | None:
        """See `SessionStore`."""
        return await self._store.count()

    async def aclose(self) -> None:
        """See `SessionStore`."""
        await self._store.aclose()

    async def _watched(self, operation: str, work: Awaitable[R]) -> R:
        start_s = self._clock()
        error: BaseException | None = None
        try:
            return await work
        except BaseException as passing:
            error = passing
            raise
        finally:
            self._tell(operation, (start_s, self._clock()), error)

    def _tell(
        self, operation: str, times: tuple[float, float], error: BaseException | None
    ) -> None:
        if self._instruments.are_exported:
            outcome = _OK if error is None else _name(error)
            said = {"operation": operation, "outcome": outcome}
            self._instruments.record(catalog.STORE_DURATION, times[1] - times[0], said)
        request = current_request()
        if request is not None and request.is_traced:
            is_remote = self._system == REDIS
            request.stored(operation, times, system=self._system, is_remote=is_remote, error=error)


def _name(error: BaseException) -> str:
    return type(error).__name__ if isinstance(error, SlipstreamError) else "other"
