"""What a request says to the store before it runs, and what comes of a store that is silent.

Knows sessions and owners; neither engines nor the wire.
"""

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from slipstream.core.errors import InvalidRequest, SessionOutOfSync, Unavailable
from slipstream.core.fingerprint import fingerprint
from slipstream.core.request import Generation
from slipstream.core.types import Verification
from slipstream.state.journal import StoreJournal
from slipstream.state.record import Claim, Record, Turn
from slipstream.state.store import SessionStore

_OF_ONE_REQUEST = re.compile(r"r-[0-9a-f]{48}")


@dataclass(frozen=True, slots=True)
class KeepRules:
    """For how long sessions are remembered, and requests on their own; and whether requests run
    while the store does not answer."""

    session_ttl_s: float = 3600.0
    request_ttl_s: float = 600.0
    allows_unkept: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that may run; without a journal it has ended, and the record says how."""

    record: Record
    journal: StoreJournal | None


class Claims:
    """The door to the store."""

    def __init__(
        self, store: SessionStore, rules: KeepRules, *, next_fence: Callable[[], int]
    ) -> None:
        """`next_fence` stands in for the store's fences while it does not answer."""
        self._store = store
        self._rules = rules
        self._next_fence = next_fence
        self._process = secrets.token_hex(8)
        self._attempts = count()

    async def take(self, asked: Generation, owner: str, model: str) -> Taken:
        """The right to run a request, which has an id; an empty `model` is that of its session.

        Raises what `SessionStore.acquire` does; `Unavailable` when the store does not answer, and
        the request can't do without or may not.
        """
        claim = self._claim(asked, owner, model)
        try:
            grant = await self._store.acquire(claim)
        except Unavailable as error:
            if not claim.create:
                raise Unavailable(
                    f"session {claim.session_id} can't be looked up: {error}"
                ) from None
            if not self._rules.allows_unkept:
                raise
            return self._unkept(claim)
        is_over = grant.lease is None
        journal = None if is_over else StoreJournal(self._store, claim, grant)
        return Taken(grant.record, journal)

    async def delete(self, session_id: str, owner: str) -> Record:
        """See `SessionStore.delete`."""
        return await self._store.delete(session_id, owner)

    def _claim(self, asked: Generation, owner: str, model: str) -> Claim:
        session, rules = asked.session, self._rules
        return Claim(
            session_id=session_of(asked, owner),
            request_id=asked.ask.request_id,
            digest=fingerprint(asked),
            owner=owner,
            holder=f"{self._process}-{next(self._attempts):012d}",
            model=model,
            create=session is None or session.create,
            ttl_s=rules.session_ttl_s if session else rules.request_ttl_s,
            is_alone=session is None,
        )

    def _unkept(self, claim: Claim) -> Taken:
        turn = Turn(claim.request_id, claim.digest)
        record = Record(claim.session_id, claim.owner, claim.model, self._next_fence(), turn)
        return Taken(record, StoreJournal(self._store, claim, None))


def check_received(asked: Generation, record: Record, *, is_repeatable: bool) -> None:
    """Raises `SessionOutOfSync` when the caller holds tokens that are not kept and that a target
    may not give again. `is_repeatable`: whether its numerics are the same every time."""
    num_kept = len(record.output)
    if asked.num_received <= num_kept:
        return
    verification = asked.ask.speculation.verification or Verification.EXACT
    if verification is not Verification.EXACT or not is_repeatable:
        why = f"verification {verification.value}" if is_repeatable else "these numerics"
        raise SessionOutOfSync(
            f"the caller holds {asked.num_received} tokens, but {num_kept} were kept, and {why} may"
            " not give the same ones again"
        )


def session_of(asked: Generation, owner: str) -> str:
    """Where a request is kept. One on its own is where nobody else's names lead.

    Raises `InvalidRequest` for a session that is named like one of those.
    """
    if asked.session is not None:
        session_id = asked.session.session_id
        if _OF_ONE_REQUEST.fullmatch(session_id):
            raise InvalidRequest(
                f"the session id is {session_id}, but ids of this form are for requests without one"
            )
        return session_id
    name = f"{owner}/{asked.ask.request_id}"
    return f"r-{hashlib.sha256(name.encode()).hexdigest()[:48]}"


def request_name(asked: Generation, owner: str) -> str:
    """Return the name of a request among all of its owner: session, id and digest of the rest.

    Only the same request, sent again, has the same name.
    """
    return f"{session_of(asked, owner)}/{asked.ask.request_id}/{fingerprint(asked)}"
