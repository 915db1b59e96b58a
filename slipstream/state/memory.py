"""Sessions in the memory of one process, without a wait: the model of what Redis does."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

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
from slipstream.state.stored_session import Expiries, StoredSession


@dataclass(slots=True)
class _Share:
    expiries: Expiries = field(default_factory=Expiries)
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
        self._expiries = Expiries()
        """A time for each session, at or before the one at which it will be forgotten."""
        self._shares: dict[str, _Share] = {}
        self._num_bytes = 0

    async def acquire(self, claim: Claim) -> Grant:
        now = self._clock()
        self._forget_old(now)
        kept = self._all.get(claim.session_id)
        if kept is None:
            kept = self._begun(claim)
        elif not kept.is_again(claim):
            if (why := kept.refusal(claim, now)) is not None:
                raise claim.refused(why, model=kept.record.model)
            kept.begin(claim, max_past=self._bounds.max_past)
        elif kept.record.turn.ending is None and kept.is_leased_by_other_attempt(claim):
            raise claim.refused("taken")
        self._expire(kept, now + min(claim.ttl_s, self._bounds.lease_s))
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
        self._forget_old(now)
        kept = self._all.get(lease.session_id)
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
        self._forget_old(now)
        kept = self._all.get(session_id)
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
        self._forget_old(now)
        kept = self._all.get(lease.session_id)
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

    def _expire(self, kept: StoredSession, time_s: float) -> None:
        """Have the session checked at that time; it is forgotten then or later."""
        self._expiries.put(kept.record.session_id, time_s)
        self._shares[kept.record.owner].expiries.put(kept.record.session_id, time_s)

    def _forget(self, session_id: str) -> None:
        kept = self._all.pop(session_id)
        self._count(kept, 0)
        share = self._shares[kept.record.owner]
        for expiries in (self._expiries, share.expiries):
            expiries.discard(session_id)
        share.num_sessions -= 1
        if not share.num_sessions:
            del self._shares[kept.record.owner]

    def _forget_old(self, now: float) -> None:
        while (first := self._expiries.first()) is not None and first[0] <= now:
            self._settle(first[1], now)

    def _settle(self, session_id: str, now: float) -> None:
        """Forget the session, or set when that will be."""
        kept = self._all[session_id]
        if kept.expires_at <= now:
            self._forget(session_id)
        else:
            self._expire(kept, kept.expires_at)

    def _make_room(self, now: float) -> None:
        """Forget idle sessions while there are too many, each of the owner with the most."""
        bounds = self._bounds
        limits = {"num_sessions": bounds.max_sessions, "num_bytes": bounds.max_sessions_bytes}
        while len(self._all) > bounds.max_sessions or self._num_bytes > bounds.max_sessions_bytes:
            name = "num_sessions" if len(self._all) > bounds.max_sessions else "num_bytes"
            shares = sorted(self._shares.values(), key=attrgetter(name), reverse=True)
            above = [it for it in shares if getattr(it, name) * len(shares) > limits[name]]
            if not any(self._forget_one(share, now) for share in above):
                return

    def _forget_one(self, share: _Share, now: float) -> bool:
        """Forget the idle session of an owner that would expire first, if there is one."""
        busy, is_found = [], False
        while not is_found and (first := share.expiries.first()) is not None:
            time_s, session_id = first
            kept = self._all[session_id]
            if kept.expires_at > time_s:
                self._settle(session_id, now)
            elif is_found := kept.leased_until <= now:
                self._forget(session_id)
            else:
                busy.append((session_id, time_s))
                share.expiries.discard(session_id)
        for session_id, time_s in busy:
            share.expiries.put(session_id, time_s)
        return is_found
