"""An open `Verify` stream: a running request, and the readers of its keys and values."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slipstream.core.errors import CapacityError, Unavailable
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Session
from slipstream.rpc.leases import Lease
from slipstream.verifying.grammar_constraint import CompiledGrammar
from slipstream_target.granted import GrantedRounds, KvReader

MAX_READERS = 4
"""Readers of one session: a draft, and what it left behind when it lost its connection."""
LINGER_S = 5.0
"""Longest time for a reader to take what it was sent, once the stream has ended."""


class VerifyStream:
    """A running request: its sequence, which a stream keeps by the deltas that it gets."""

    def __init__(self, lease: Lease, session: Session, *, linger_s: float = LINGER_S) -> None:
        self.lease = lease
        self.sequence = TokenSequence(session)
        self.credential = secrets.token_urlsafe(24)
        self.has_begun = False
        """True once a verification of the request was answered."""
        self.grammar: CompiledGrammar | None = None
        """Grammar of its output; held, so that it need not be compiled again."""
        self.max_queue_s: float | None = None
        """Longest time for a round of it to wait for memory; None for no limit."""
        self.is_ended = False
        """True if the request has ended, or another one has taken the session over."""
        self.granted = GrantedRounds()
        self._linger_s = linger_s
        self._readers: set[KvReader] = set()

    def admits(self, credential: str) -> bool:
        """Return whether this is the secret; takes the same time whatever is wrong with it."""
        return secrets.compare_digest(credential.encode(), self.credential.encode())

    def notify(self) -> None:
        """Let readers look for more."""
        for reader in self._readers:
            reader.news.set()

    def end(self) -> None:
        """End the readers' streams too. A reader that does not take what it was sent is dropped.
        Again is fine."""
        if self.is_ended:
            return
        self.is_ended = True
        self.granted.propose_by(None)
        self.notify()
        until = asyncio.get_running_loop().time() + self._linger_s
        for reader in self._readers:
            reader.timeout.reschedule(until)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[KvReader]:
        """Add a reader meanwhile. Raises `CapacityError` when there are too many."""
        if len(self._readers) >= MAX_READERS:
            raise CapacityError(
                f"the keys and values of session {self.lease.session_id} have"
                f" {MAX_READERS} readers, the limit"
            )
        try:
            async with asyncio.timeout(None) as timeout:
                reader = KvReader(timeout)
                self._readers.add(reader)
                try:
                    yield reader
                finally:
                    self._readers.discard(reader)
                    reader.close()
        except TimeoutError:
            raise Unavailable("the reader did not take what it was sent") from None
