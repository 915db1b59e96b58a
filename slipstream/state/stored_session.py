"""A session in memory: what is kept of it, who may go on with it, and when it is forgotten."""

from array import array
from dataclasses import dataclass, field, replace

from slipstream.state.store import Claim, Record, SessionUpdate, StoredTurn

_OVERHEAD_BYTES = 2048
"""Names, times and the objects around them."""


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
        self.record = replace(record, turn=turn)
