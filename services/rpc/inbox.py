"""The messages of a stream for as long as its lease holds. Knows nothing of what they say."""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from slipstream.core.errors import SessionTaken
from slipstream.rpc.leases import Lease

M = TypeVar("M")


class Inbox(Generic[M]):
    """Reads one message after the other. Close it."""

    def __init__(self, messages: AsyncIterator[M], lease: Lease) -> None:
        self._messages = messages
        self._lease = lease
        self._revoked = asyncio.create_task(lease.revoked.wait())

    async def next(self) -> M | None:
        """The next message; None at the end. Raises `SessionTaken` once the lease is lost."""
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reading, self._revoked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The messages can't be closed while somebody reads them.
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
        if self._lease.revoked.is_set():
            raise SessionTaken(
                f"session {self._lease.session_id} was taken over under a higher fence than"
                f" {self._lease.fence}"
            )
        return reading.result()

    def close(self) -> None:
        """Watch the lease no longer."""
        self._revoked.cancel()

    async def _read(self) -> M | None:
        return await anext(self._messages, None)
