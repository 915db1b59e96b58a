"""Reasons for which the drafting of a proposal ends, by name. Values."""

CONTEXT = "context"
"""End at the limit of the draft's own context."""
NO_ROOM = "memory"
"""End of a session that the draft has no room for now."""
TOO_DEAR = "load"
"""End where no further token is worth its time."""
LATE = "late"
"""`Proposal.fallback` where a proposal takes longer than it is worth, and may still come."""
STOP_REASONS = (
    *("depth", "nodes", "policy", TOO_DEAR, "eos", "lag", CONTEXT, NO_ROOM),
    *("lookup", "grammar", "none"),
)
"""All that may end the drafting of a proposal: the values of `Proposal.stopped_by`."""
