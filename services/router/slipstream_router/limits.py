"""Requests of an API key, within its quotas."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from slipstream.core.errors import CapacityError, Unavailable
from slipstream.core.request.request import Generation
from slipstream.core.request.results import Chunk
from slipstream.state.access import Entry
from slipstream.state.quotas import Quotas, Ticket
from slipstream.state.session_leases import request_name

LONGEST_S = 600.0
"""Longest time for which a silent request counts as running."""
BATCH_TOKENS = 64
"""Tokens are counted in lots of these: a count may be a way to Redis and back."""

Remaining = Callable[[], float | None]
Charge = Callable[[int], Awaitable[None]]
"""Counts tokens of the prompt or the output, now or with those that follow."""


@asynccontextmanager
async def admitted(
    quotas: Quotas, key: Entry, asked: Generation, remaining: Remaining
) -> AsyncIterator[Charge]:
    """Let a request run. Raises `LimitExceeded`, with the time until there is room again.

    `remaining` returns the seconds that the caller waits, None without a limit.
    """
    if not key.limits.given():
        yield _uncounted
        return
    attempt = secrets.token_hex(8)
    request = request_name(asked, key.name) if asked.ask.request_id else attempt
    ticket = Ticket(key.name, key.limits, request, attempt)
    num_pending = 0

    async def charge(num_tokens: int) -> None:
        nonlocal num_pending
        num_pending += num_tokens
        if num_pending >= BATCH_TOKENS:
            lot, num_pending = num_pending, 0
            await quotas.charge(ticket, lot, ttl_s=_ttl_s(remaining()))

    try:
        await quotas.take(ticket, ttl_s=_ttl_s(remaining()))
    except asyncio.CancelledError:  # it may have been counted
        await quotas.give_back(ticket, 0)
        raise
    try:
        yield charge
    finally:
        await quotas.give_back(ticket, num_pending)


def _ttl_s(left_s: float | None) -> float:
    return LONGEST_S if left_s is None else max(1.0, min(left_s, LONGEST_S))


async def _uncounted(num_tokens: int) -> None:
    """Count nothing: the key has no limits."""


def num_tokens(chunk: Chunk) -> int:
    """Return the tokens of a chunk, those of the prompt included where it has their number."""
    prompt = 0 if chunk.prompt is None else chunk.prompt.num_prompt_tokens
    return prompt + len(chunk.token_ids)


class Admission:
    """The door of the router."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.num_requests = 0
        self.is_draining = False

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request. Raises `Unavailable` while draining, `CapacityError` if full."""
        if self.is_draining:
            raise Unavailable("the router is about to stop")
        if self.num_requests >= self._max_requests:
            raise CapacityError(
                f"{self.num_requests} requests are running, the limit; try again later"
            )
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1
