"""Where sessions are remembered: one protocol, in memory or in Redis.

Every operation is atomic. Writes carry the fence of a lease, and one that is not the newest is
refused: two processes can never both go on with a session. Times are the store's own.
A session without tokens is there only for as long as it is held.
"""

from typing import Protocol

from slipstream.state.record import Claim, Grant, Lease, News, Record


class SessionStore(Protocol):
    """Sessions. A store that does not answer raises `Unavailable`, whatever is asked of it."""

    async def acquire(self, claim: Claim) -> Grant:
        """The right to run a request, and what there is of its session; or how it ended.

        The request that is the session's newest goes on, also while another attempt runs it: that
        one loses its lease, as `Claim.takes_over` says. With another request the session must be
        idle, its newest request have ended, given back or not, or the lease have run out.
        Raises `SessionTaken` (another attempt keeps its lease), `SessionNotFound`, `SessionExists`
        (to be begun, but there), `SessionBusy`, `PermissionDenied` (another owner's),
        `RequestExists` (the id is that of another request), and `InvalidRequest` for a session
        with another model.
        """
        ...

    async def append(self, lease: Lease, news: News) -> None:
        """Keep what became final, and renew the lease. What is kept already is not kept twice.

        Raises `SessionTaken` when another lease is newer, `SessionOutOfSync` when `news` starts
        above what is kept or is not what is kept there, or the store lost the session or lease
        (to acquire it again, with `create`, shows what is kept), `CapacityError` for too much.
        """
        ...

    async def renew(self, lease: Lease) -> None:
        """Go on holding the session. Raises `SessionTaken`, and `SessionOutOfSync` once lost."""
        ...

    async def release(self, lease: Lease, *, target: str | None, draft: str | None) -> None:
        """Give the session back; the addresses say where its keys are kept.

        One that has no tokens is forgotten, and so is the id of a request that kept nothing: it was
        refused, and may be corrected. Nothing happens when another lease is newer.
        """
        ...

    async def delete(self, session_id: str, owner: str) -> Record:
        """Forget a session; what there was of it, under a fence above all that it had.

        Raises `SessionNotFound`, `SessionBusy` and `PermissionDenied`.
        """
        ...

    async def count(self) -> int | None:
        """How many sessions are remembered; None where that is not known."""
        ...

    async def aclose(self) -> None:
        """End connections. Again is fine."""
        ...
