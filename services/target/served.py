"""Requests that run on this target: who holds the lease, and who reads their keys and values.

Everything here happens on the event loop. Knows no messages and no engine.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from slipstream.core.errors import CapacityError, SessionNotFound, Unavailable
from slipstream.rpc.leases import Lease
from slipstream.target.compiled import CompiledGrammar

MAX_READERS = 4
"""Of one session: a draft, and what it left behind when it lost its connection."""

LINGER_S = 5.0
"""How long a reader may take for what it was sent once the session is over."""


@dataclass(eq=False, slots=True)
class Reader:
    """One stream of a session's keys and values. `news` is set when there may be more."""

    news: asyncio.Event
    patience: asyncio.Timeout
    verified: object | None = None
    """What was told with the news, by the last that told of anything; whoever reads takes it."""

    def take_verified(self) -> object | None:
        """It, once."""
        verified, self.verified = self.verified, None
        return verified


class Served:
    """One running request. Its readers learn of every change, and of the end."""

    def __init__(self, lease: Lease, *, linger_s: float = LINGER_S) -> None:
        self.lease = lease
        self.credential = secrets.token_urlsafe(24)
        self.has_begun = False
        """Whether a verification of it was answered."""
        self.grammar: CompiledGrammar | None = None
        """What its output follows; held, so that it need not be compiled again."""
        self.max_queue_s: float | None = None
        """Longest time for a round of it to wait for memory; None for no limit."""
        self._linger_s = linger_s
        self._is_over = False
        self._readers: set[Reader] = set()
        self._verified: object | None = None

    @property
    def session_id(self) -> str:
        """The session it is a request of."""
        return self.lease.session_id

    @property
    def is_over(self) -> bool:
        """Whether the request has ended, or another one has taken the session over."""
        return self._is_over

    def admits(self, credential: str) -> bool:
        """Whether this is the secret; takes the same time whatever is wrong with it."""
        return secrets.compare_digest(credential.encode(), self.credential.encode())

    def tell(self, verified: object | None = None) -> None:
        """There may be more to read, because of what was `verified`: anything that readers, and
        whoever comes before the next news, are to know it by."""
        self._verified = verified
        for reader in self._readers:
            reader.verified = reader.verified if verified is None else verified
            reader.news.set()

    def end(self) -> None:
        """Nothing more comes. A reader that does not take what it was sent is dropped. Again is
        fine."""
        if self._is_over:
            return
        self._is_over = True
        self.tell()
        until = asyncio.get_running_loop().time() + self._linger_s
        for reader in self._readers:
            reader.patience.reschedule(until)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """A place among the readers. Raises `CapacityError` when all are taken."""
        if len(self._readers) >= MAX_READERS:
            raise CapacityError(
                f"the keys and values of session {self.session_id} have {MAX_READERS} readers,"
                " the limit"
            )
        try:
            async with asyncio.timeout(None) as patience:
                reader = Reader(asyncio.Event(), patience, self._verified)
                self._readers.add(reader)
                try:
                    yield reader
                finally:
                    self._readers.discard(reader)
        except TimeoutError:
            raise Unavailable("the reader did not take what it was sent") from None


class ServedSessions:
    """The running requests, by session."""

    def __init__(self) -> None:
        self._running: dict[str, Served] = {}

    def begin(self, lease: Lease) -> Served:
        """A request that holds the lease; one that held the session before is over."""
        served = Served(lease)
        before = self._running.get(lease.session_id)
        if before is not None:
            before.end()
        self._running[lease.session_id] = served
        return served

    def end(self, served: Served) -> None:
        """The request is over."""
        served.end()
        if self._running.get(served.session_id) is served:
            del self._running[served.session_id]

    def find(self, session_id: str) -> Served:
        """The running request of a session. Raises `SessionNotFound`."""
        if session_id not in self._running:
            raise SessionNotFound(f"no request of session {session_id} is running here")
        return self._running[session_id]
