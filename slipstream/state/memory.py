"""Sessions in the memory of one process, without a wait: the model of what Redis does."""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

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

_OVERHEAD_BYTES = 2048
"""Names, times and the objects around them."""
SWEEP_S = 1.0
"""Shortest time between two searches for all sessions that have expired."""


@dataclass(slots=True)
class StoredSession:
    """A session, until when it is remembered, and until when it is busy."""

    record: Record
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    holder: str = ""
    """The attempt that has the newest lease."""
    expires_at: float = 0.0
    leased_until: float = 0.0
    """0 once the lease was released."""
    past: tuple[str, ...] = ()
    """Ids of earlier requests, the oldest first; the last is the newest with an answer."""
    num_before: int = 0
    """Tokens before the newest request's prompt."""
    counted_bytes: int = 0

    def whole(self) -> Record:
        return replace(self.record, tokens=tuple(self.tokens))

    def hold(self, lease_s: float, ttl_s: float, *, now: float) -> None:
        """Keep it busy for a while. Without tokens it is remembered for no longer."""
        self.leased_until = now + lease_s
        self.expires_at = self.leased_until
        if self.tokens:
            self.touch(ttl_s, now=now)

    def touch(self, ttl_s: float, *, now: float) -> None:
        """Remember it from now on."""
        self.expires_at = max(now + ttl_s, self.leased_until)

    def is_busy(self, now: float) -> bool:
        """Return whether a request runs: its lease has not run out, and it has not ended."""
        return self.leased_until > now and self.record.turn.ending is None

    def num_bytes(self) -> int:
        turn = self.record.turn
        texts = (turn.ending or "", *self.past)
        return _OVERHEAD_BYTES + 4 * len(self.tokens) + sum(map(len, texts))

    def is_again(self, claim: Claim) -> bool:
        """Return whether the session's newest request claims it once more."""
        turn = self.record.turn
        known = (self.record.owner, turn.request_id, turn.digest)
        return known == (claim.owner, claim.request_id, claim.digest)

    def is_leased_by_other_attempt(self, claim: Claim) -> bool:
        """Return whether another attempt at the same request has the lease, and keeps it.

        The lease counts until it is released: one that ran out may be in use again.
        """
        if not self.leased_until or self.holder == claim.holder:
            return False
        process, dash, _ = claim.holder.rpartition("-")
        is_newer = self.holder.startswith(process + dash) and self.holder > claim.holder
        return not claim.takes_over or (bool(dash) and is_newer)

    def refusal(self, claim: Claim, now: float) -> str | None:
        """Return why another request may not run; None when it may."""
        record = self.record
        if record.owner != claim.owner:
            return "owner"
        if claim.request_id in (record.turn.request_id, *self.past):
            return "request"
        if claim.create:
            return "exists"
        if claim.model not in ("", record.model):
            return "model"
        turn, before = record.turn, self.past[-1] if self.past else ""
        is_newest = claim.after == (turn.request_id if turn.num_prompt_tokens else before)
        if claim.after and not is_newest and not self._drops_turn(claim):
            return "moved"
        return "busy" if self.is_busy(now) else None

    def _drops_turn(self, claim: Claim) -> bool:
        """Return whether a request follows the one before the newest, which never ended."""
        is_open = bool(self.record.turn.num_prompt_tokens) and self.record.turn.ending is None
        return is_open and bool(claim.after) and self.past[-1:] == (claim.after,)

    def begin(self, claim: Claim, *, max_past: int) -> None:
        """Begin another request. Nothing stays of a turn that was left, and that it does not
        follow."""
        turn, is_dropped = self.record.turn, self._drops_turn(claim)
        if is_dropped:
            del self.tokens[self.num_before :]
        is_last = bool(turn.num_prompt_tokens) and not is_dropped
        place = len(self.past) if is_last else max(0, len(self.past) - 1)
        names = (turn.request_id,) if turn.request_id else ()
        past = (*self.past[:place], *names, *self.past[place:])
        self.past = past[max(0, len(past) - max_past) :]
        self.num_before = len(self.tokens)
        self.record = replace(self.record, turn=StoredTurn(claim.request_id, claim.digest))

    def misfit(self, update: SessionUpdate) -> str | None:
        """Return why an update does not go on from what is kept; None when it does."""
        num_kept, turn, opening = len(self.tokens), self.record.turn, update.opening
        if update.start > num_kept:
            return "gap"
        end = update.start + len(update.tokens)
        if tuple(self.tokens[update.start : end]) != update.tokens[: num_kept - update.start]:
            return "differs"
        if opening and turn.num_prompt_tokens not in (0, opening.num_prompt_tokens):
            return "differs"
        if turn.ending is not None and (end > num_kept or update.ending not in (None, turn.ending)):
            return "differs"
        return None

    def add(self, update: SessionUpdate) -> None:
        record, turn, opening = self.record, self.record.turn, update.opening
        if update.ending is not None:
            turn = replace(turn, ending=update.ending)
        if opening is not None:
            turn = replace(turn, num_prompt_tokens=opening.num_prompt_tokens)
            arithmetic = opening.arithmetic or None
            record = replace(record, tokenizer_hash=opening.tokenizer_hash, arithmetic=arithmetic)
        self.tokens.extend(update.tokens[len(self.tokens) - update.start :])
        if turn is not self.record.turn:
            self.record = replace(record, turn=turn)


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
        self._sessions, self._bytes = Counter[str](), Counter[str]()
        """Sessions of each owner, and bytes."""
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
        self._sessions[claim.owner] += 1
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
        self._bytes[kept.record.owner] += num_bytes - kept.counted_bytes
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
        owner = kept.record.owner
        self._sessions[owner] -= 1
        if not self._sessions[owner]:
            del self._sessions[owner], self._bytes[owner]

    def _forget_old(self, now: float) -> None:
        for session_id in [name for name, it in self._all.items() if it.expires_at <= now]:
            self._forget(session_id)

    def _make_room(self, now: float) -> None:
        """Forget idle sessions while there are too many, each of the owner with the most."""
        bounds = self._bounds
        while len(self._all) > bounds.max_sessions or self._num_bytes > bounds.max_sessions_bytes:
            used, most = self._bytes, bounds.max_sessions_bytes
            if len(self._all) > bounds.max_sessions:
                used, most = self._sessions, bounds.max_sessions
            above = [owner for owner, use in used.most_common() if use * len(used) > most]
            if not any(self._forget_one(owner, now) for owner in above):
                return

    def _forget_one(self, owner: str, now: float) -> bool:
        """Forget the idle session of an owner that would expire first, if there is one."""
        own = [kept for kept in self._all.values() if kept.record.owner == owner]
        idle = [kept for kept in own if kept.leased_until <= now]
        if idle:
            self._forget(min(idle, key=lambda kept: kept.expires_at).record.session_id)
        return bool(idle)
