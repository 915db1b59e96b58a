"""Replicas that failed lately, and a request's use of one after another. The clock is an argument.

After a few failures in a row a replica rests, and no request uses it. Then one request may try:
when it succeeds, all may use it again, and when it fails, the replica rests for longer.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.core import errors
from slipstream.core.ports import Draft, Target
from slipstream.core.round import Clock

_LOG = logging.getLogger("slipstream.router")


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """Failures in a row after which a name rests, and the time that it rests."""

    failures: int = 3
    first_s: float = 0.5
    longest_s: float = 10.0
    """Every rest is twice as long as the one before, up to this."""


_USUAL = BreakerLimits()


class Breakers:
    """Breakers by name, each closed (all may call), open (it rests) or half open (one may try)."""

    def __init__(self, clock: Clock, limits: BreakerLimits = _USUAL) -> None:
        self._clock = clock
        self._limits = limits
        self._known: dict[str, _Breaker] = {}

    def resting(self) -> frozenset[str]:
        """Return the names that may not be used now: they rest, or a request is trying them."""
        return frozenset(name for name in self._known if not self.may_ask(name))

    def may_ask(self, name: str) -> bool:
        breaker = self._known.get(name)
        return (
            breaker is None
            or not breaker.is_open
            or (breaker.trial is None and self._clock() >= breaker.until)
        )

    def begin(self, name: str) -> "Attempt":
        """Begin an attempt of a request that may call it. `end` what is returned."""
        attempt = Attempt(name, self._known, self._clock, self._limits)
        breaker = self._known.get(name)
        if breaker is not None and breaker.is_open and self.may_ask(name):
            breaker.trial = attempt
        return attempt

    def forget(self, name: str) -> None:
        """Forget its failures: it is another one now, or gone."""
        self._known.pop(name, None)

    def reason(self, name: str) -> str:
        """Return why it may not be used; empty when it may."""
        breaker = self._known.get(name)
        if breaker is None or not breaker.is_open:
            return ""
        state = "resting" if self._clock() < breaker.until else "tried again"
        return (
            f"{state} after {breaker.num_failures} failure{'s' if breaker.num_failures > 1 else ''}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One request's use of a name. It may succeed and fail many times, until it ends."""

    _name: str
    _known: dict[str, "_Breaker"]
    _clock: Clock
    _limits: BreakerLimits

    def succeeded(self) -> None:
        breaker = self._known.get(self._name)
        if breaker is not None and (not breaker.is_open or breaker.trial is self):
            del self._known[self._name]

    def failed(self) -> None:
        """Count a failure: no answer, or a wrong one."""
        breaker = self._known.setdefault(self._name, _Breaker())
        if breaker.is_open and breaker.trial is not self:
            return  # it began before the rest did: no news
        breaker.trial = None
        breaker.num_failures += 1
        if breaker.num_failures >= self._limits.failures:
            rest_s = 2 * breaker.rest_s if breaker.rest_s else self._limits.first_s
            breaker.rest_s = min(rest_s, self._limits.longest_s)
            breaker.until = self._clock() + breaker.rest_s

    def end(self) -> None:
        """End the attempt. Without an outcome, another request may try. May be repeated."""
        breaker = self._known.get(self._name)
        if breaker is not None and breaker.trial is self:
            breaker.trial = None


@dataclass(slots=True)
class _Breaker:
    num_failures: int = 0
    rest_s: float = 0.0
    """The last rest; 0 before the first, which is to say closed."""
    until: float = 0.0
    trial: Attempt | None = None

    @property
    def is_open(self) -> bool:
        """Open, or half open once the rest is over."""
        return self.rest_s > 0


_OF_THE_REPLICA = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.InternalError,
    errors.ModelError,
)
P = TypeVar("P", bound=Draft | Target)


@dataclass(frozen=True, slots=True)
class InUse(Generic[P]):
    """A replica that a request uses; releasing its session ends the use."""

    name: str
    port: P
    park: Callable[[float], Awaitable[None]]
    """Keep the session for that many seconds, for its next turn."""


@dataclass(eq=False, kw_only=True)
class FailoverProxy(Generic[P]):
    """A port of one request, over one replica after another."""

    choose: Callable[[Collection[str]], InUse[P] | None]
    """Return a replica that is not among the names given; None when there is none."""
    own: Breakers
    """Replicas that failed lately in this request."""
    shared: Breakers
    """Replicas that failed lately in all requests."""
    remaining: Callable[[], float | None] = lambda: None
    """Return the seconds that the request has left; None without a limit."""
    _session_id: str = ""
    _used: InUse[P] | None = None
    _attempts: tuple[Attempt, ...] = ()
    """Attempts at the replica: that of this request, and that of all of them."""

    async def release(self, session_id: str) -> None:
        await self._end(self._let_go())

    async def park(self, ttl_s: float) -> str | None:
        """Park the session; return the name of the replica that keeps it, None without one."""
        used = self._let_go()
        if used is None:
            return None
        try:
            await used.park(ttl_s)
        except Exception as error:  # any failure of reading its answer
            _LOG.warning("%s did not park a session: %s", used.name, error)
            return None
        finally:
            await self._end(used)
        return used.name

    def _use(self, used: InUse[P] | None) -> None:
        self._used = used
        if used is not None:
            self._attempts = self.own.begin(used.name), self.shared.begin(used.name)

    def _resting(self) -> frozenset[str]:
        return self.own.resting() | self.shared.resting()

    def _succeeded(self) -> None:
        for attempt in self._attempts:
            attempt.succeeded()

    def _failed(self, error: Exception) -> None:
        """Count a failure: for all requests only where it concerns the replica more than this
        request, because it does not answer or fails inside."""
        for attempt in self._attempts[: 1 + isinstance(error, _OF_THE_REPLICA)]:
            attempt.failed()

    def _is_over(self, used: InUse[P]) -> bool:
        """Return whether the request itself has ended: its time is up, or it released the port."""
        remaining_s = self.remaining()
        return self._used is not used or (remaining_s is not None and remaining_s <= 0)

    def _let_go(self) -> InUse[P] | None:
        used, self._used = self._used, None
        for attempt in self._attempts:
            attempt.end()
        self._attempts = ()
        return used

    async def _end(self, used: InUse[P] | None) -> None:
        if used is not None:
            await used.port.release(self._session_id)
