"""A request's use of one replica after another: which of them rest, and what came of each use."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.core import errors
from slipstream.router.breaker import Attempt, Breakers

_OF_THE_REPLICA = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.InternalError,
    errors.ModelError,
)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class InUse(Generic[P]):
    """A replica that a request uses; releasing its session ends the use."""

    name: str
    """Its address."""
    port: P
    park: Callable[[float], Awaitable[None]]
    """Keep the session for that many seconds, for its next turn."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Replicas that failed lately: in this request, and in all requests."""

    own: Breakers
    shared: Breakers

    def resting(self) -> frozenset[str]:
        """Return the names of those that are not to be used now."""
        return self.own.resting() | self.shared.resting()

    def begin(self, name: str) -> "ReplicaAttempt":
        """Begin to use a replica."""
        return ReplicaAttempt(self.own.begin(name), self.shared.begin(name))


@dataclass(frozen=True, slots=True)
class ReplicaAttempt:
    """One use of a replica, counted for this request and for all of them."""

    own: Attempt
    shared: Attempt

    def failed(self, error: Exception) -> None:
        """Count a failure: for all requests only where it says more of the replica than of this
        request, because it does not answer or fails inside."""
        self.own.failed()
        if isinstance(error, _OF_THE_REPLICA):
            self.shared.failed()

    def succeeded(self) -> None:
        """Count an answer."""
        self.own.succeeded()
        self.shared.succeeded()

    def end(self) -> None:
        """End the use."""
        self.own.end()
        self.shared.end()
