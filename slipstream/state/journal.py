"""The journal of one request in a store: what is final is kept before it is sent, if the store
answers.

While the store does not answer, the request goes on without it, and what was not kept is kept as
soon as possible. Starts no task: the caller has it tended.
"""

import asyncio
import logging
from array import array
from collections.abc import Sequence
from dataclasses import replace

from slipstream.core.errors import PermissionDenied, SessionError, SessionTaken, Unavailable
from slipstream.core.request.results import Continuity, Ending
from slipstream.state.store import Claim, Grant, Opening, SessionStore, SessionUpdate, StoreLease

_LOG = logging.getLogger("slipstream.state")


class StoreJournal:
    """See `core.run.Journal`. `close` it in any case, and again until it returns True."""

    def __init__(
        self, store: SessionStore, claim: Claim, grant: Grant | None, *, at_end: bool = False
    ) -> None:
        """`grant` None: the store did not answer yet; `at_end`: it gets all with the ending."""
        self._store, self._at_end = store, at_end
        record = None if grant is None else grant.record
        model = claim.model if record is None else record.model
        self._claim = replace(claim, model=model, create=True)
        """Claim that begins the session anew, should the store lose it."""
        self._lease: StoreLease | None = None if grant is None else grant.lease
        self._tokens = array("I", () if record is None else record.tokens)
        self._num_kept = len(self._tokens)
        self._ahead = array("I")
        """Stored tokens beyond those that this request has reached."""
        self._is_all_kept = False
        """True if another router stored the whole answer, while this one ran without the store."""
        self._is_opened = bool(record and record.turn.num_prompt_tokens)
        self._opening: Opening | None = None
        self._ending: str | None = None
        self._error: SessionTaken | None = None
        self.is_behind = grant is None
        """True while something was sent that is not kept."""
        self._writing = asyncio.Lock()
        """Held by what may acquire the lease anew: two leases would end each other."""
        self._num_unkept = self._num_target_losses = 0

    @property
    def num_bytes(self) -> int:
        return self._tokens.itemsize * len(self._tokens)

    def open(self, tokens: Sequence[int], opening: Opening) -> None:
        """Set what the request's output follows: the session's tokens, its prompt included."""
        self._tokens = array("I", tokens) + self._tokens[len(tokens) :]
        self._opening = opening

    async def keep(self, tokens: Sequence[int], ending: Ending | None) -> None:
        """See `core.run.Journal.keep`. What can't be kept now is kept later."""
        if self._error is not None:
            raise self._error
        self._tokens.extend(tokens)
        self._check_ahead()
        if ending is not None:
            kept = replace(ending.stats, continuity=replace(ending.stats.continuity, is_kept=True))
            self._ending = replace(ending, stats=kept).to_json()
        if not self.is_behind and (ending is not None or not self._at_end):
            try:
                await self._write()
            except Unavailable as error:
                self.is_behind = True
                _LOG.warning("session %s goes on unkept: %s", self._claim.session_id, error)
        if self.is_behind:
            self._num_unkept += len(tokens)

    def lost_target(self) -> None:
        """Record that a target was lost, and another one goes on."""
        self._num_target_losses += 1

    def continuity(self) -> Continuity:
        return Continuity(
            is_kept=not self.is_behind,
            num_unkept_tokens=self._num_unkept,
            num_target_losses=self._num_target_losses,
        )

    async def tend(self) -> None:
        """Renew the lease, anew where the store lost it, or keep what could not be kept so far.

        Raises `Unavailable` while the store does not answer. That the session was taken over is
        raised by `keep`.
        """
        try:
            if not self.is_behind and self._lease is not None:
                return await self._renew(self._lease)
            if self._has_unkept:
                await self._write()
            if self.is_behind and self._opening is not None and not self._has_unkept:
                _LOG.info("session %s is kept again", self._claim.session_id)
                self.is_behind = False
        except SessionTaken as error:
            self._error = error

    async def close(self, *, target: str | None, draft: str | None) -> bool:
        """Release the session, its keys being at these addresses; return whether that was done.

        False: the store does not answer, and something is not kept yet. Try again.
        The lease of another attempt at the request stays from now on.
        """
        self._claim = replace(self._claim, takes_over=False)
        try:
            if self.is_behind and self._opening is not None:
                await self.tend()
            if self._lease is not None:
                await self._store.release(self._lease, target=target, draft=draft)
        except Unavailable:
            return self._lease is None and not self._has_unkept
        return True

    @property
    def _has_unkept(self) -> bool:
        if self._opening is None or self._error is not None or self._is_all_kept:
            return False
        return self._num_kept < len(self._tokens) or self._ending is not None

    async def _renew(self, lease: StoreLease) -> None:
        try:
            await self._store.renew(lease)
        except SessionError as error:
            async with self._writing:
                if self._lease is not lease:  # it was acquired anew meanwhile
                    return
                if isinstance(error, SessionTaken):
                    raise
                await self._claim_again()

    async def _write(self) -> None:
        """Keep all that is not kept, again where the store has lost some of it."""
        async with self._writing:
            if self._is_all_kept:
                return
            try:
                if self._lease is None:
                    await self._claim_again()
                await self._append()
            except SessionTaken:
                raise
            except SessionError:
                await self._claim_again()
                try:
                    await self._append()
                except SessionTaken:
                    raise
                except SessionError as error:  # a new lease that is lost as well: a silent store
                    raise Unavailable(f"the store keeps nothing: {error}") from None

    async def _append(self) -> None:
        if self._lease is None or self._num_kept > len(self._tokens):  # all there is, is kept
            return
        update, ending = tuple(self._tokens[self._num_kept :]), self._ending
        opening = None if self._is_opened else self._opening
        await self._store.append(
            self._lease, SessionUpdate(self._num_kept, update, opening, ending)
        )
        self._num_kept += len(update)
        self._is_opened = True
        if ending is self._ending:
            self._ending = None

    async def _claim_again(self) -> None:
        """Acquire the lease anew, and what the store has by now."""
        try:
            grant = await self._store.acquire(self._claim)
        except (SessionError, PermissionDenied) as error:
            raise SessionTaken(f"another request has the session: {error}") from None
        kept = array("I", grant.record.tokens)
        self._lease, self._num_kept, self._ahead = grant.lease, len(kept), kept
        self._is_all_kept = grant.lease is None
        self._check_ahead()
        self._is_opened = bool(grant.record.turn.num_prompt_tokens)

    def _check_ahead(self) -> None:
        """Compare a request that ran without the store with what another router kept of it."""
        num_common = min(len(self._ahead), len(self._tokens))
        if self._ahead[:num_common] != self._tokens[:num_common]:
            name = self._claim.session_id
            raise SessionTaken(f"session {name} has gone on without this request")
        if num_common == len(self._ahead):
            self._ahead = array("I")
