"""A router and the replicas it knows, as it tells them to whoever asks. Plain values."""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaRole(StrEnum):
    """What a replica is there for."""

    DRAFT = "draft"
    TARGET = "target"


class ReplicaState(StrEnum):
    """How a router sees a replica."""

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


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A router and its replicas, sorted by role and address."""

    version: str
    protocol_version: int
    uptime_s: float
    num_requests: int
    num_sessions: int
    replicas: tuple[ReplicaInfo, ...] = ()
