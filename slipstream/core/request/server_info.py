"""A router and its replicas, as it reports them to clients. Plain values."""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaRole(StrEnum):
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
    """Reason of the state, if there is more to say."""
    model: str = ""
    """Model (target) or kind of drafter (draft); empty while unknown."""
    num_requests: int = 0
    """Requests that this router runs on it."""
    incarnation: str = ""
    """Incarnation of the replica's process; empty while unknown."""
    dtype: str = ""
    """Element type of its weights; empty while unknown, and for a draft that is no model."""
    weights_digest: str = ""
    """SHA-256 of its weights; empty while unknown, and for a draft."""
    engine: str = ""
    """Engine of a target: native or torch; empty while unknown, and for a draft."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A router and its replicas, sorted by role and address."""

    version: str
    protocol_version: int
    uptime_s: float
    num_requests: int
    num_sessions: int
    replicas: tuple[ReplicaInfo, ...] = ()
