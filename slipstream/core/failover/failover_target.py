"""The target of one request: replicas may be lost, and another one goes on.

The next replica gets all final tokens and the round that was lost, and returns the same tokens.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from slipstream.core import errors
from slipstream.core.errors import CapacityError, SlipstreamError
from slipstream.core.failover.breaker import FailoverProxy, InUse
from slipstream.core.ports import Target
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Verdict, Verification

_LOG = logging.getLogger("slipstream.router")
_LOST = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.HandshakeError,
    errors.InternalError,
    errors.SessionOutOfSync,
)
"""Errors that say more of the replica than of the request: another replica may do better."""
MAX_LOSSES = 32
"""Losses of one request: it may be what the replicas die of."""
MAX_INTERNAL_ERRORS = 4
"""Internal errors of one request, which may cause them. Fewer than a target endures in a row."""


@dataclass(eq=False, kw_only=True)
class FailoverTarget(FailoverProxy[Target]):
    """`core.ports.Target` of one request, over one replica after another."""

    first: InUse[Target]
    pause: Callable[[], Awaitable[None]]
    """Wait a little: there may be other targets then."""
    on_loss: Callable[[], None]
    """Called for every target that is lost."""
    wait_s: float = 30.0
    """Longest time that a request waits for a target when all are lost."""
    _full: set[str] = field(default_factory=set)
    """Targets without room for the round that is verified."""
    _num_losses: int = 0
    _num_internal_errors: int = 0

    def __post_init__(self) -> None:
        self._use(self.first)

    async def verify(self, sequence: TokenSequence, proposal: Proposal) -> Verdict:
        """See `core.ports.Target.verify`. Raises the last replica's error without another one."""
        self._session_id = sequence.session_id
        while True:
            used = self._used
            assert used is not None
            try:
                verdict = await used.port.verify(sequence, proposal)
            except (*_LOST, CapacityError) as error:
                await self._replace(used, error)
                if sequence.session.verification is Verification.TARGET_INIT:
                    proposal = Proposal()  # roots that the lost one drew are none of the next one's
                continue
            self._full.clear()
            self._succeeded()
            return verdict

    async def _replace(self, lost: InUse[Target], error: SlipstreamError) -> None:
        if self._is_over(lost):
            raise error
        self._failed(error)
        await self._end(self._let_go())
        self._num_losses += 1
        self._num_internal_errors += isinstance(error, errors.InternalError)
        if self._num_losses > MAX_LOSSES or self._num_internal_errors >= MAX_INTERNAL_ERRORS:
            raise error
        if isinstance(error, CapacityError):
            # A full replica is alive: waiting for it is the caller's choice, trying each is ours.
            self._full.add(lost.name)
            found = self.choose(self._resting() | self._full)
        else:
            found = await self._found()
        if found is None:
            raise error
        if not isinstance(error, CapacityError):
            self.on_loss()
            _LOG.warning("target %s is lost, %s goes on: %s", lost.name, found.name, error)
        self._use(found)

    async def _found(self) -> InUse[Target] | None:
        """Return another target as soon as there is one; None when there was none for long."""
        remaining_s = self.remaining()
        wait_s = self.wait_s
        try:
            async with asyncio.timeout(wait_s if remaining_s is None else min(wait_s, remaining_s)):
                while (found := self.choose(self._resting())) is None:
                    await self.pause()
        except TimeoutError:
            return None
        return found
