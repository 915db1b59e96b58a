"""Sessions in the memory of one process: the default, and the model of what Redis does.

Nothing here ever waits, so that code without an event loop can use it as well.
"""

from dataclasses import dataclass, replace

from slipstream.core.timing import Clock
from slipstream.state.expiries import Expiries
from slipstream.state.record import Bounds, Claim, Grant, Lease, News, Record, Turn
from slipstream.state.refusals import check_claim, check_news, claim_refused, session_refused


@dataclass(slots=True)
class _Kept:
    """A session, until when it is remembered, and until when it is busy."""

    record: Record
    expires_at: float = 0.0
    leased_until: float = 0.0
    past: tuple[str, ...] = ()
    """Ids of earlier requests, the oldest first."""

    def hold(self, lease_s: float, ttl_s: float, *, now: float) -> None:
        """Be busy for a while. Without tokens it is remembered for no longer."""
        self.leased_until = now + lease_s
        self.expires_at = self.leased_until
        if self.record.tokens:
            self.touch(ttl_s, now=now)

    def is_busy(self, now: float) -> bool:
        """Whether a request runs: its lease has not run out, and it has not ended."""
        return self.leased_until > now and self.record.turn.ending is None

    def touch(self, ttl_s: float, *, now: float) -> None:
        """Be remembered from now on."""
        self.expires_at = max(now + ttl_s, self.leased_until)


class MemoryStore:
    """Sessions that end with the process."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        """`clock` gives seconds since the epoch: fences grow over restarts by it."""
        self._bounds = bounds
        self._clock = clock
        self._fence = 0
        """The newest of all sessions."""
        self._all: dict[str, _Kept] = {}
        self._expiries = Expiries()
        """A time for each session, at or before the one at which it will be forgotten."""

    async def acquire(self, claim: Claim) -> Grant:
        """See `SessionStore`."""
        check_claim(claim)
        now = self._clock()
        self._forget_old(now)
        kept = self._all.get(claim.session_id)
        if kept is None:
            kept = self._begun(claim, now)
        elif not _is_again(kept.record, claim):
            self._next_turn(kept, claim, now)
        self._expiries.put(claim.session_id, now + min(claim.ttl_s, self._bounds.lease_s))
        if kept.record.turn.ending is not None:
            kept.touch(claim.ttl_s, now=now)
            return Grant(kept.record, None)
        kept.record = replace(kept.record, fence=self._next_fence(now))
        kept.hold(self._bounds.lease_s, claim.ttl_s, now=now)
        return Grant(kept.record, Lease(claim.session_id, kept.record.fence, claim.ttl_s))

    async def append(self, lease: Lease, news: News) -> None:
        """See `SessionStore`."""
        check_news(news, self._bounds)
        kept = self._held(lease)
        if (why := _misfit(kept.record, news)) is not None:
            raise session_refused(why, lease.session_id)
        kept.record = _with_news(kept.record, news)
        kept.hold(self._bounds.lease_s, lease.ttl_s, now=self._clock())

    async def renew(self, lease: Lease) -> None:
        """See `SessionStore`."""
        self._held(lease).hold(self._bounds.lease_s, lease.ttl_s, now=self._clock())

    async def release(self, lease: Lease, *, target: str | None, draft: str | None) -> None:
        """See `SessionStore`."""
        now = self._clock()
        self._forget_old(now)
        kept = self._all.get(lease.session_id)
        if kept is None or kept.record.fence != lease.fence:
            return
        if not kept.record.tokens:
            self._forget(lease.session_id)
            return
        turn = kept.record.turn
        if not turn.num_prompt_tokens:  # it was refused, and may be corrected under its id
            turn = replace(turn, request_id="", digest="")
        kept.record = replace(kept.record, turn=turn, target=target, draft=draft)
        kept.leased_until = 0.0
        kept.touch(lease.ttl_s, now=now)

    async def delete(self, session_id: str, owner: str) -> Record:
        """See `SessionStore`."""
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
        return replace(kept.record, fence=self._next_fence(now))

    async def count(self) -> int | None:
        """See `SessionStore`."""
        self._forget_old(self._clock())
        return len(self._all)

    async def aclose(self) -> None:
        """See `SessionStore`."""

    def _begun(self, claim: Claim, now: float) -> _Kept:
        if not claim.create or not claim.model:
            raise claim_refused("absent", claim)
        self._make_room(now)
        turn = Turn(claim.request_id, claim.digest)
        kept = _Kept(Record(claim.session_id, claim.owner, claim.model, 0, turn))
        self._all[claim.session_id] = kept
        return kept

    def _next_turn(self, kept: _Kept, claim: Claim, now: float) -> None:
        """Let another request run. Raises what refuses it."""
        record = kept.record
        if (why := _refusal(kept, claim, now)) is not None:
            raise claim_refused(why, claim, model=record.model)
        past = (*kept.past, record.turn.request_id) if record.turn.request_id else kept.past
        kept.past = past[max(0, len(past) - self._bounds.max_past) :]
        kept.record = replace(record, turn=Turn(claim.request_id, claim.digest))

    def _held(self, lease: Lease) -> _Kept:
        self._forget_old(self._clock())
        kept = self._all.get(lease.session_id)
        if kept is None or kept.record.fence < lease.fence:
            raise session_refused("lost", lease.session_id)
        if kept.record.fence > lease.fence:
            raise session_refused("taken", lease.session_id)
        return kept

    def _next_fence(self, now: float) -> int:
        self._fence = max(self._fence + 1, int(now * 1000))
        return self._fence

    def _forget(self, session_id: str) -> None:
        del self._all[session_id]
        self._expiries.discard(session_id)

    def _forget_old(self, now: float) -> None:
        while (first := self._expiries.first()) is not None and first[0] <= now:
            self._settle(first[1], now)

    def _settle(self, session_id: str, now: float) -> None:
        """Forget the session, or say when that will be."""
        expires_at = self._all[session_id].expires_at
        if expires_at <= now:
            self._forget(session_id)
        else:
            self._expiries.put(session_id, expires_at)

    def _make_room(self, now: float) -> None:
        """Forget the idle session that would be forgotten first, when there are too many."""
        if len(self._all) < self._bounds.max_sessions:
            return
        busy = []
        while (first := self._expiries.first()) is not None:
            at, session_id = first
            kept = self._all[session_id]
            if kept.expires_at > at:
                self._settle(session_id, now)
            elif kept.leased_until <= now:
                self._forget(session_id)
                break
            else:
                busy.append((session_id, at))
                self._expiries.discard(session_id)
        for session_id, at in busy:
            self._expiries.put(session_id, at)


def _is_again(record: Record, claim: Claim) -> bool:
    """Whether the session's newest request asks once more."""
    turn = record.turn
    said = (record.owner, turn.request_id, turn.digest)
    return said == (claim.owner, claim.request_id, claim.digest)


def _refusal(kept: _Kept, claim: Claim, now: float) -> str | None:
    """Why another request may not run; None when it may."""
    record = kept.record
    if record.owner != claim.owner:
        return "owner"
    if claim.request_id in (record.turn.request_id, *kept.past):
        return "request"
    if claim.create:
        return "exists"
    if claim.model not in ("", record.model):
        return "model"
    return "busy" if kept.is_busy(now) else None


def _misfit(record: Record, news: News) -> str | None:
    """Why news do not go on from what is kept; None when they do."""
    num_kept, turn, opening = len(record.tokens), record.turn, news.opening
    if news.start > num_kept:
        return "gap"
    end = news.start + len(news.tokens)
    if record.tokens[news.start : end] != news.tokens[: num_kept - news.start]:
        return "differs"
    if opening and turn.num_prompt_tokens not in (0, opening.num_prompt_tokens):
        return "differs"
    if turn.ending is not None and (end > num_kept or news.ending not in (None, turn.ending)):
        return "differs"
    return None


def _with_news(record: Record, news: News) -> Record:
    turn, opening = record.turn, news.opening
    if news.ending is not None:
        turn = replace(turn, ending=news.ending)
    if opening is not None:
        turn = replace(turn, num_prompt_tokens=opening.num_prompt_tokens, params=opening.params)
        arithmetic = opening.arithmetic or None
        record = replace(record, tokenizer_hash=opening.tokenizer_hash, arithmetic=arithmetic)
    new = news.tokens[len(record.tokens) - news.start :]
    return replace(record, tokens=record.tokens + new if new else record.tokens, turn=turn)
