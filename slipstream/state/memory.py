"""Sessions in the memory of one process, without a wait: the model of what Redis does."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slipstream.core.round import Clock
from slipstream.state.store import (
    Bounds,
    Claim,
    Grant,
    Record,
    SessionUpdate,
    StoredTurn,
    StoreLease,
    session_refused,
)
from slipstream.state.stored_session import StoredSession

SWEEP_S = 1.0
"""Shortest time between two searches for all sessions that have expired."""


@dataclass(slots=True)
class _Share:
    num_sessions: int = 0
    num_bytes: int = 0


class MemoryStore:
    """`SessionStore` whose sessions end with the process.

    Where there are too many, or they take too much memory, the owner with the most loses an idle
    one. An owner with no more than an equal share loses none.
    """

    def __init__(self, bounds: Bounds, clock: Clock, *, next_fence: Callable[[], int]) -> None:
        """`clock` never jumps: seconds since any moment. Fences only grow, over restarts too."""
        self._bounds = bounds
        self._clock = clock
        self._next_fence = next_fence
        self._all: dict[str, StoredSession] = {}
        self._shares: dict[str, _Share] = {}
        """Use of the store by each owner."""
        self._num_bytes = 0
        self._next_sweep = 0.0

    async def acquire(self, claim: Claim) -> Grant:
        now = self._clock()
        if now >= self._next_sweep:
            self._forget_old(now)
            self._next_sweep = now + SWEEP_S
        kept = self._find(claim.session_id, now)
        if kept is None:
            kept = self._begun(claim)
        elif not kept.is_again(claim):
            if (why := kept.refusal(claim, now)) is not None:
                raise claim.refused(why, model=kept.record.model)
            kept.begin(claim, max_past=self._bounds.max_past)
        elif kept.record.turn.ending is None and kept.is_leased_by_other_attempt(claim):
            raise claim.refused("taken")
        if kept.record.turn.ending is not None:
            kept.touch(claim.ttl_s, now=now)
            return Grant(kept.whole(), None)
        kept.record = replace(kept.record, fence=self._next_fence())
        kept.holder = claim.holder
        kept.hold(self._bounds.lease_s, claim.ttl_s, now=now)
        self._count(kept)
        self._make_room(now)
        return Grant(kept.whole(), StoreLease(claim.session_id, kept.record.fence, claim.ttl_s))

    async def append(self, lease: StoreLease, update: SessionUpdate) -> None:
        update.check_within(self._bounds)
        now = self._clock()
        kept = self._held(lease, now)
        if (why := kept.misfit(update)) is not None:
            raise session_refused(why, lease.session_id)
        kept.add(update)
        kept.hold(self._bounds.lease_s, lease.ttl_s, now=now)
        self._count(kept)
        self._make_room(now)

    async def renew(self, lease: StoreLease) -> None:
        now = self._clock()
        self._held(lease, now).hold(self._bounds.lease_s, lease.ttl_s, now=now)

    async def release(self, lease: StoreLease, *, target: str | None, draft: str | None) -> None:
        now = self._clock()
        kept = self._find(lease.session_id, now)
        if kept is None or kept.record.fence != lease.fence:
            return
        if not kept.tokens:
            self._forget(lease.session_id)
            return
        turn = kept.record.turn
        if not turn.num_prompt_tokens:  # it was refused, and may be corrected under its id
            turn = replace(turn, request_id="", digest="")
        kept.record = replace(kept.record, turn=turn, target=target, draft=draft)
        kept.leased_until = 0.0
        kept.touch(lease.ttl_s, now=now)

    async def delete(self, session_id: str, owner: str) -> Record:
        now = self._clock()
        kept = self._find(session_id, now)
        if kept is None:
            raise session_refused("absent", session_id)
        if kept.record.owner != owner:
            raise session_refused("owner", session_id)
        if kept.is_busy(now):
            raise session_refused("busy", session_id)
        self._forget(session_id)
        return replace(kept.whole(), fence=self._next_fence())

    async def count(self) -> int | None:
        self._forget_old(self._clock())
        return len(self._all)

    async def aclose(self) -> None:
        """See `SessionStore`."""

    def _begun(self, claim: Claim) -> StoredSession:
        if not claim.create or not claim.model:
            raise claim.refused("absent")
        turn = StoredTurn(claim.request_id, claim.digest)
        kept = StoredSession(Record(claim.session_id, claim.owner, claim.model, 0, turn))
        self._all[claim.session_id] = kept
        self._shares.setdefault(claim.owner, _Share()).num_sessions += 1
        return kept

    def _held(self, lease: StoreLease, now: float) -> StoredSession:
        kept = self._find(lease.session_id, now)
        if kept is None or kept.record.fence < lease.fence:
            raise session_refused("lost", lease.session_id)
        if kept.record.fence > lease.fence:
            raise session_refused("taken", lease.session_id)
        return kept

    def _count(self, kept: StoredSession, num_bytes: int | None = None) -> None:
        num_bytes = kept.num_bytes() if num_bytes is None else num_bytes
        self._shares[kept.record.owner].num_bytes += num_bytes - kept.counted_bytes
        self._num_bytes += num_bytes - kept.counted_bytes
        kept.counted_bytes = num_bytes

    def _find(self, session_id: str, now: float) -> StoredSession | None:
        """Return the session, unless it is not there, or its time is over."""
        kept = self._all.get(session_id)
        if kept is None or kept.expires_at > now:
            return kept
        self._forget(session_id)
        return None

    def _forget(self, session_id: str) -> None:
        kept = self._all.pop(session_id)
        self._count(kept, 0)
        share = self._shares[kept.record.owner]
        share.num_sessions -= 1
        if not share.num_sessions:
            del self._shares[kept.record.owner]

    def _forget_old(self, now: float) -> None:
        for session_id in [name for name, it in self._all.items() if it.expires_at <= now]:
            self._forget(session_id)

    def _make_room(self, now: float) -> None:
        """Forget idle sessions while there are too many, each of the owner with the most."""
        bounds = self._bounds
        limits = {"num_sessions": bounds.max_sessions, "num_bytes": bounds.max_sessions_bytes}
        while len(self._all) > bounds.max_sessions or self._num_bytes > bounds.max_sessions_bytes:
            name = "num_sessions" if len(self._all) > bounds.max_sessions else "num_bytes"
            used = {owner: getattr(share, name) for owner, share in self._shares.items()}
            owners = sorted(used, key=lambda owner: used[owner], reverse=True)
            above = [owner for owner in owners if used[owner] * len(used) > limits[name]]
            if not any(self._forget_one(owner, now) for owner in above):
                return

    def _forget_one(self, owner: str, now: float) -> bool:
        """Forget the idle session of an owner that would expire first, if there is one."""
        own = [kept for kept in self._all.values() if kept.record.owner == owner]
        idle = [kept for kept in own if kept.leased_until <= now]
        if idle:
            self._forget(min(idle, key=lambda kept: kept.expires_at).record.session_id)
        return bool(idle)
