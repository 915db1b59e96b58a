"""Reasons for which the drafting of a proposal ends, by name. Values."""

CONTEXT = "context"
"""What ends the drafting where the draft's own context does."""
NO_ROOM = "memory"
"""Reason of a session that the draft has no room for now."""
TOO_DEAR = "load"
"""What ends the drafting where no further token is worth its time."""
AHEAD = "ahead"
"""What ended the drafting of a tree that was there before its sequence was known: its verdict."""
LATE = "late"
"""`Proposal.fallback` where a proposal takes longer than it is worth, and may still come."""
PENDING = "pending"
"""The same with overlap, where the target does not wait for a draft that is far."""
STOP_REASONS = (
    *("depth", "nodes", "policy", TOO_DEAR, "eos", "lag", CONTEXT, NO_ROOM),
    *("lookup", "grammar", AHEAD, "none"),
)
"""What may end the drafting of a proposal: `Proposal.stopped_by`."""
