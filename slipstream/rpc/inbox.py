"""The messages of a stream for as long as its lease holds. Knows nothing of what they say."""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from slipstream.core.errors import SessionTaken
from slipstream.rpc.leases import Lease

M = TypeVar("M")


class Inbox(Generic[M]):
    """Reads one message after the other."""

    def __init__(self, messages: AsyncIterator[M], lease: Lease) -> None:
        self._messages = messages
        self._lease = lease
        self._patience: asyncio.Timeout | None = None
        lease.on_revoked = self._hurry

    async def next(self) -> M | None:
        """The next message; None at the end. Raises `SessionTaken` once the lease is lost."""
        self._require_lease()
        try:
            async with asyncio.timeout(None) as self._patience:
                message = await anext(self._messages, None)
        except TimeoutError:
            message = None
        finally:
            self._patience = None
        self._require_lease()
        return message

    def _hurry(self) -> None:
        """Wait no longer for a message that will not be answered."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def _require_lease(self) -> None:
        if self._lease.is_revoked:
            raise SessionTaken(
                f"session {self._lease.session_id} was taken over under a higher fence than"
                f" {self._lease.fence}"
            )
