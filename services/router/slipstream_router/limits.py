"""Requests of an API key, within its quotas."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from slipstream.core.errors import CapacityError, Unavailable
from slipstream.core.request.request import Generation
from slipstream.core.request.results import Chunk
from slipstream.state.access import Key
from slipstream.state.quotas import Quotas, Ticket
from slipstream.state.session_leases import request_name

LONGEST_S = 600.0
"""Longest time for which a silent request counts as running."""
BATCH_TOKENS = 64
"""Tokens are counted in lots of these: a count may be a way to Redis and back."""

Remaining = Callable[[], float | None]
Charge = Callable[[int], Awaitable[None]]
"""Counts tokens of the prompt or the output."""


class QuotaUse:
    """Use of an API key's quotas by one request."""

    def __init__(self, quotas: Quotas, ticket: Ticket, remaining: Remaining) -> None:
        self._quotas, self._ticket, self._remaining = quotas, ticket, remaining
        self._num_pending = 0

    async def begin(self) -> None:
        """Raises `LimitExceeded`."""
        try:
            await self._quotas.take(self._ticket, ttl_s=self._ttl_s())
        except asyncio.CancelledError:
            await self.end()  # it may have been counted
            raise

    async def charge(self, num_tokens: int) -> None:
        """Count tokens of the prompt or the output, now or with those that follow."""
        self._num_pending += num_tokens
        if self._num_pending >= BATCH_TOKENS:
            num_pending, self._num_pending = self._num_pending, 0
            await self._quotas.charge(self._ticket, num_pending, ttl_s=self._ttl_s())

    async def end(self) -> None:
        """Count what is left; the request runs no more."""
        await self._quotas.give_back(self._ticket, self._num_pending)

    def _ttl_s(self) -> float:
        left = self._remaining()
        return LONGEST_S if left is None else max(1.0, min(left, LONGEST_S))


class KeyLimits:
    """Lets requests in as their keys' limits allow."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    @asynccontextmanager
    async def admitted(
        self, key: Key, asked: Generation, remaining: Remaining
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
        use = QuotaUse(self._quotas, ticket, remaining)
        await use.begin()
        try:
            yield use.charge
        finally:
            await use.end()


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
