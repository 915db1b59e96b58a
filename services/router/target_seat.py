"""The target as the loop sees it: replicas may be lost, and another one goes on.

What is final is told to the next replica from the first token on; the round that was lost is asked
again, and gives the same tokens. Knows neither wire nor placement.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from slipstream.core import errors
from slipstream.core.errors import CapacityError, SlipstreamError
from slipstream.core.history import apply_delta
from slipstream.core.types import Delta, Proposal, Session, Verdict, Verification
from slipstream.router.seat import Failures, Try

_LOG = logging.getLogger("slipstream.router")
_LOST = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.HandshakeError,
    errors.InternalError,
    errors.SessionOutOfSync,
)
"""What says more of the replica than of the request: another one may do better."""
MAX_LOSSES = 32
"""Of one request: it may be what the replicas die of."""
MAX_INTERNAL_ERRORS = 4
"""Of one request: it may be what their steps fail of. Fewer than a target endures in a row."""


class HeldTarget(Protocol):
    """A target that a request has for itself, until it drops it."""

    @property
    def name(self) -> str:
        """Where it is."""
        ...

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`. Raises `Unavailable` as soon as it is lost."""
        ...

    async def park(self, ttl_s: float) -> None:
        """Have the session kept for its next turn, and end."""
        ...

    async def drop(self) -> None:
        """End, and free everything. Again is fine."""
        ...


@dataclass(frozen=True, slots=True)
class Search:
    """How another target is found."""

    choose: Callable[[Collection[str]], HeldTarget | None]
    """One that is not among the names given; None when there is none."""
    pause: Callable[[], Awaitable[None]]
    """Wait a little: there may be others then."""
    remaining: Callable[[], float | None]
    """Seconds that the request has left; None for no limit."""
    wait_s: float = 30.0
    """How long a request waits for a target when all are lost."""


class TargetSeat:
    """A `core.ports.Target` for one request. Park or release it in the end."""

    def __init__(
        self,
        first: HeldTarget,
        search: Search,
        failures: Failures,
        *,
        on_loss: Callable[[], None],
    ) -> None:
        """`on_loss` is called for every target that is lost."""
        self._search = search
        self._failures = failures
        self._on_loss = on_loss
        self._held: HeldTarget | None = first
        self._try: Try | None = failures.begin(first.name)
        self._tokens: list[int] = []
        self._num_told = 0
        """Leading tokens that the held target was told, or said itself."""
        self._full: set[str] = set()
        """Targets without room for the round that is verified."""
        self._num_losses = self._num_internal_errors = 0

    async def verify(self, session: Session, delta: Delta, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`. Raises what the last one did when there is no other."""
        self._tokens, num_same = apply_delta(self._tokens, delta)
        self._num_told = min(self._num_told, num_same)
        while True:
            held = self._held
            assert held is not None
            news = Delta.since(self._num_told, self._tokens)
            try:
                verdict = await held.verify(session, news, proposal)
            except (*_LOST, CapacityError) as error:
                await self._replace(held, error)
                proposal = _again(session, proposal)
                continue
            self._full.clear()
            self._tokens += verdict.tokens
            self._num_told = len(self._tokens)
            if self._try is not None:
                self._try.succeeded()
            return verdict

    async def release(self, session_id: str) -> None:
        """See `core.ports.Target.release`."""
        await self._drop()

    async def park(self, ttl_s: float) -> str | None:
        """Have the session kept; the name of who keeps it, None when nobody does."""
        held = self._held
        if held is None:
            return None
        try:
            await held.park(ttl_s)
        except SlipstreamError as error:
            _LOG.warning("target %s did not park a session: %s", held.name, error)
            return None
        finally:
            await self._drop()
        return held.name

    async def _replace(self, lost: HeldTarget, error: SlipstreamError) -> None:
        """Another target for the one that is lost, or the error."""
        if self._held is not lost or self._is_late():  # the request has ended
            raise error
        attempt = self._try
        if attempt is not None:
            attempt.failed(error)
        await self._drop()
        self._num_losses += 1
        self._num_internal_errors += isinstance(error, errors.InternalError)
        if self._num_losses > MAX_LOSSES or self._num_internal_errors >= MAX_INTERNAL_ERRORS:
            raise error
        if isinstance(error, CapacityError):
            # A full replica is alive: waiting for it is the caller's choice, trying each is ours.
            self._full.add(lost.name)
            found = self._choose(self._full)
        else:
            found = await self._found()
        if found is None:
            raise error
        if not isinstance(error, CapacityError):
            self._on_loss()
            _LOG.warning("target %s is lost, %s goes on: %s", lost.name, found.name, error)
        self._held, self._try, self._num_told = found, self._failures.begin(found.name), 0

    async def _found(self) -> HeldTarget | None:
        """Another target, as soon as there is one; None when there was none for long."""
        remaining_s = self._search.remaining()
        wait_s = self._search.wait_s
        try:
            async with asyncio.timeout(wait_s if remaining_s is None else min(wait_s, remaining_s)):
                while (found := self._choose()) is None:
                    await self._search.pause()
        except TimeoutError:
            return None
        return found

    def _choose(self, full: Collection[str] = ()) -> HeldTarget | None:
        return self._search.choose(self._failures.resting().union(full))

    def _is_late(self) -> bool:
        remaining_s = self._search.remaining()
        return remaining_s is not None and remaining_s <= 0

    async def _drop(self) -> None:
        held, self._held = self._held, None
        if self._try is not None:
            self._try.end()
            self._try = None
        if held is not None:
            await held.drop()


def _again(session: Session, proposal: Proposal) -> Proposal:
    """What another target is asked: roots that the lost one drew are none of its own."""
    return Proposal() if session.verification is Verification.TARGET_INIT else proposal
