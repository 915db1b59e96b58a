"""A router and its replicas, as it reports them to clients. Plain values."""

from dataclasses import dataclass, field
from enum import StrEnum


class ReplicaRole(StrEnum):
    """Role of a replica."""

    DRAFT = "draft"
    TARGET = "target"


class ReplicaState(StrEnum):
    """State of a replica, as a router sees it."""

    CONNECTING = "connecting"
    """Not reached yet, or lost."""
    READY = "ready"
    DRAINING = "draining"
    """Finishes what it has, and takes nothing new."""
    UNFIT = "unfit"
    """Reached, but can't be used."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica as a router sees it."""

    role: ReplicaRole
    address: str
    state: ReplicaState
    reason: str = ""
    """Why it is in that state, if there is more to say."""
    model: str = ""
    """Model (target) or kind of drafter (draft); empty while unknown."""
    num_requests: int = 0
    """Requests that this router runs on it."""
    incarnation: str = ""
    """Its process; empty while unknown."""
    dtype: str = ""
    """Element type of its weights; empty while unknown, and for a draft that is no model."""
    weights_digest: str = ""
    """SHA-256 of its weights; empty while unknown, and for a draft."""
    engine: str = ""
    """What computes a target: native or torch; empty while unknown, and for a draft."""


@dataclass(frozen=True, slots=True)
class ShadowInfo:
    """Results of the shadow check, since the router's start.

    Of the requests drawn for it, `num_offered`, each is in one of the counts of outcomes, or waits.
    """

    rate: float = 0.0
    """Share of finished requests that are drawn; 0 where the check is off."""
    num_offered: int = 0
    num_checked: int = 0
    """Decoded again to their end, or to the first difference."""
    num_checked_tokens: int = 0
    """Output tokens compared, those of checks that were given up included."""
    num_diverged: int = 0
    """Of those checked, how many differed from plain decoding."""
    num_inconclusive: int = 0
    """Nothing was drafted, so there was nothing to check."""
    num_incomparable: int = 0
    """Their verification keeps a distribution rather than tokens, or nothing."""
    num_skipped: int = 0
    """No target had room for them, or the router had none left."""
    num_dropped: int = 0
    """Too many waited already."""
    smallest_margin: float | None = None
    """Of all differences whose margin is known; None without any."""
    largest_margin: float | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A router and its replicas, sorted by role and address."""

    version: str
    protocol_version: int
    uptime_s: float
    num_requests: int
    num_sessions: int
    replicas: tuple[ReplicaInfo, ...] = ()
    shadow: ShadowInfo = field(default_factory=ShadowInfo)
