"""Quotas of API keys: requests and tokens per minute, and how many requests at once.

Requests and tokens are buckets that fill evenly: a minute's worth at most. A request takes one
from the first and needs the second to be above zero; tokens are charged as they become known, and
may drive it below. Requests that run are known by id and for a time only, so that those of a
process that died are not counted for ever.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Protocol

from slipstream.core.errors import LimitExceeded, check
from slipstream.options import option

MINUTE_S = 60.0
RUNNING_RETRY_S = 1.0
"""Time until the next try while too many requests run: their ends are unknown."""
_ENOUGH = 1 - 1e-9
"""Part of a request that counts as one: rounding must not cost another wait."""


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Limits of an API key. None is no limit."""

    requests_per_minute: int | None = option(None, "Maximum in a minute.")
    tokens_per_minute: int | None = option(None, "Maximum in a minute.")
    """Tokens of prompts and outputs together."""
    max_concurrent: int | None = option(None, "Maximum number of requests at once.")

    def __post_init__(self) -> None:
        for name, limit in self.given().items():
            is_right = type(limit) is int and 0 < limit <= 1 << 40
            check(is_right, name, limit, "a whole number above 0")

    def given(self) -> dict[str, int]:
        """Return the limits that there are, by name."""
        return {name: limit for name, limit in asdict(self).items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Ticket:
    """One attempt at one request of one API key.

    A request that is tried again while the first attempt counts as running takes its place: it is
    not held up by what is used up, though it is charged, up to a minute's requests in debt.
    """

    key: str
    limits: QuotaLimits
    request: str
    """Name of the request among all of the key; equal only where the same one is sent again."""
    attempt: str


class Quotas(Protocol):
    """Counts what API keys use. A request that is not charged again counts for `ttl_s`."""

    async def take(self, ticket: Ticket, *, ttl_s: float) -> None:
        """Admit a request. Raises `LimitExceeded`, and has then taken nothing."""

    async def charge(self, ticket: Ticket, num_tokens: int, *, ttl_s: float) -> None:
        """Count tokens of a request that runs, and have it count as running for longer."""

    async def give_back(self, ticket: Ticket, num_tokens: int) -> None:
        """Count the last tokens of a request; it runs no more."""

    async def aclose(self) -> None:
        """End connections. May be repeated."""


def refusal(ticket: Ticket, limit: str, wait_s: float) -> LimitExceeded:
    """Return the error for a limit, by name, that is used up."""
    wait_s = math.ceil(wait_s * 1000) / 1000
    most = getattr(ticket.limits, limit)
    what = {
        "requests_per_minute": f"{most} requests per minute, and has sent them",
        "tokens_per_minute": f"{most} tokens per minute, and has used them",
        "max_concurrent": f"{most} requests running at once, and has them",
    }[limit]
    return LimitExceeded(
        f"the key {ticket.key!r} may have {what} ({limit}); try again in {wait_s:g} seconds",
        retry_after_s=wait_s,
    )


@dataclass(slots=True)
class _Bucket:
    """Rest of a minute's quota, all of it at first."""

    level: float = math.inf
    at_s: float = 0.0

    def fill(self, limit: int, now_s: float) -> float:
        """Fill it for the time that passed; return its level."""
        passed_s = max(0.0, now_s - self.at_s)
        self.level = min(float(limit), self.level + passed_s * limit / MINUTE_S)
        self.at_s = now_s
        return self.level


@dataclass(slots=True)
class _Account:
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    running: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Per request its attempt, and until when it counts."""


class MemoryQuotas:
    """`Quotas` of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    async def take(self, ticket: Ticket, *, ttl_s: float) -> None:
        now_s = self._clock()
        account = self._account(ticket, now_s)
        waits = dict(_waits(ticket, account, now_s))
        if waits:
            limit = max(waits, key=lambda name: waits[name])
            raise refusal(ticket, limit, waits[limit])
        if ticket.limits.requests_per_minute is not None:
            account.requests.level -= 1
        account.running[ticket.request] = (ticket.attempt, now_s + ttl_s)

    async def charge(self, ticket: Ticket, num_tokens: int, *, ttl_s: float) -> None:
        account, now_s = self._paid(ticket, num_tokens)
        attempt, _ = account.running.get(ticket.request, (ticket.attempt, 0.0))
        if attempt == ticket.attempt:
            account.running[ticket.request] = (attempt, now_s + ttl_s)

    async def give_back(self, ticket: Ticket, num_tokens: int) -> None:
        account, _ = self._paid(ticket, num_tokens)
        attempt, _ = account.running.get(ticket.request, ("", 0.0))
        if attempt == ticket.attempt:
            del account.running[ticket.request]

    async def aclose(self) -> None:
        """See `Quotas.aclose`."""

    def _account(self, ticket: Ticket, now_s: float) -> _Account:
        account = self._accounts.setdefault(ticket.key, _Account())
        account.running = {
            name: entry for name, entry in account.running.items() if entry[1] > now_s
        }
        return account

    def _paid(self, ticket: Ticket, num_tokens: int) -> tuple[_Account, float]:
        """Return the account after it was charged, and the time of that."""
        now_s, most = self._clock(), ticket.limits.tokens_per_minute
        account = self._account(ticket, now_s)
        if most is not None:
            account.tokens.fill(most, now_s)
            account.tokens.level -= num_tokens
        return account, now_s


def _waits(ticket: Ticket, account: _Account, now_s: float) -> list[tuple[str, float]]:
    """Return the limits that are used up, and in how many seconds there is some again."""
    limits, waits = ticket.limits, []
    goes_on = ticket.request in account.running
    if (most := limits.requests_per_minute) is not None:
        needed = _ENOUGH - most if goes_on else _ENOUGH
        level = account.requests.fill(most, now_s)
        if level < needed:
            waits.append(("requests_per_minute", (needed - level) * MINUTE_S / most))
    if goes_on:
        return waits
    if (most := limits.tokens_per_minute) is not None:
        level = account.tokens.fill(most, now_s)
        if level <= 0:
            waits.append(("tokens_per_minute", (1 - level) * MINUTE_S / most))
    if (most := limits.max_concurrent) is not None and len(account.running) >= most:
        waits.append(("max_concurrent", RUNNING_RETRY_S))
    return waits
