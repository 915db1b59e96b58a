"""Leases of an engine's sessions, and what stays when there is none.

A stream is a lease: one at a time per session, and the higher fence wins. What a lease leaves
parked is bounded by time, bytes and number; the least recently parked of the owner with most goes
first. Of engines it uses only what frees a session, and its size.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.core.errors import CapacityError, InvalidRequest, SessionTaken, check_fits
from slipstream.rpc.service_options import SessionOptions

MAX_OWNER_LENGTH = 64
M = TypeVar("M")


@dataclass(eq=False, slots=True)
class Lease:
    """A running request's hold on a session, until `is_revoked`: another took it over."""

    session_id: str
    fence: int
    owner: str = ""
    """Digest of the API key; an empty one is an owner, too."""
    is_revoked: bool = False
    _patience: asyncio.Timeout | None = None

    def revoke(self) -> None:
        """Another one has the session now: the wait for a message ends."""
        self.is_revoked = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def next(self, messages: AsyncIterator[M]) -> M | None:
        """The next message; None at the end. Raises `SessionTaken` once the lease is lost."""
        self._require()
        try:
            async with asyncio.timeout(None) as self._patience:
                message = await anext(messages, None)
        except TimeoutError:
            message = None
        finally:
            self._patience = None
        self._require()
        return message

    def _require(self) -> None:
        if self.is_revoked:
            raise SessionTaken(
                f"session {self.session_id} was taken over under a higher fence than {self.fence}"
            )


def kind_of(message: Any, kinds: Collection[str], sentence: str) -> str:
    """Return which of the parts that are due a stream's message has. Raises `InvalidRequest` for
    another one; `sentence` says which are due."""
    kind: str = message.WhichOneof("message") or "an empty message"
    if kind not in kinds:
        raise InvalidRequest(f"{sentence}, but got {kind}")
    return kind


@dataclass(slots=True)
class _Parked:
    fence: int
    owner: str
    timer: asyncio.TimerHandle
    num_bytes: int


@dataclass(eq=False)
class Leases:
    """The sessions of one engine. All calls are made on one event loop."""

    release: Callable[[str], Awaitable[None]]
    """Free a session in the engine."""
    num_bytes: Callable[[str], int]
    """Return what a session holds there."""
    limits: SessionOptions
    _active: dict[str, Lease] = field(default_factory=dict)
    _parked: OrderedDict[str, _Parked] = field(default_factory=OrderedDict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def num_parked(self) -> int:
        """Sessions kept for a next turn."""
        return len(self._parked)

    @property
    def held_bytes(self) -> int:
        """Bytes that all of them hold in the engine."""
        return sum(self.num_bytes(session_id) for session_id in (*self._active, *self._parked))

    async def open(self, session_id: str, fence: int, owner: str = "") -> Lease:
        """Take a session, parked or not, over or begin it, for an owner.

        Raises `SessionTaken` when a fence as high has it, `CapacityError` when every place is
        taken by a running request.
        """
        check_fits("the owner has", len(owner), "characters", MAX_OWNER_LENGTH)
        running = self._active.get(session_id)
        parked = self._parked.get(session_id)
        held = running or parked
        # A parked session may go on under the fence that parked it; a running one may not.
        if held is not None and fence < held.fence + (held is running):
            raise SessionTaken(f"session {session_id} is held with fence {held.fence}, not {fence}")
        if running is not None:
            running.revoke()
        lease = Lease(session_id, fence, owner)
        if parked is not None:
            parked.timer.cancel()
            del self._parked[session_id]
        elif running is None and len(self._active) >= self.limits.max_sessions:
            raise CapacityError(
                f"{len(self._active)} sessions are running, the limit; try again later"
            )
        self._active[session_id] = lease
        try:
            await self._make_room()
        except BaseException:  # a lease that was not handed out is never closed
            await self.close(lease)
            raise
        return lease

    async def close(self, lease: Lease) -> None:
        """Give a session back and free it, also if cancelled, unless another lease took it over."""
        await asyncio.shield(self._own(self._close(lease)))

    async def _close(self, lease: Lease) -> None:
        if self._active.get(lease.session_id) is lease:
            # It stays taken until it is free: a successor must not meet the remains of this one.
            await self.release(lease.session_id)
            if self._active.get(lease.session_id) is lease:
                del self._active[lease.session_id]

    async def park(self, lease: Lease, ttl_s: float) -> None:
        """Give a session back, but keep what it holds for a while."""
        if not 0 < ttl_s <= self.limits.max_park_ttl_s:
            raise InvalidRequest(
                f"a session can't be parked for {ttl_s:g} s, but for up to"
                f" {self.limits.max_park_ttl_s:g} s"
            )
        session_id = lease.session_id
        if self._active.get(session_id) is not lease:
            return
        del self._active[session_id]
        timer = asyncio.get_running_loop().call_later(
            ttl_s, lambda: self._own(self._evict(session_id))
        )
        num_bytes = self.num_bytes(session_id)
        self._parked[session_id] = _Parked(lease.fence, lease.owner, timer, num_bytes)
        await self._make_room()

    async def clear(self) -> None:
        """Free everything that is parked, and finish what is under way."""
        for session_id in list(self._parked):
            await self._evict(session_id)
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _make_room(self) -> None:
        """Evict parked sessions until all the limits hold, each of the owner with the most."""
        while self._parked and (use := self._exceeding()):
            first = max(self._parked, key=lambda name: use[self._parked[name].owner])
            # As in `close`: who waits for room may go away, but what was parked must not stay.
            await asyncio.shield(self._own(self._evict(first)))

    def _exceeding(self) -> Counter[str]:
        """Return what each owner has of that of which there is too much; nothing if all is well."""
        if len(self._active) + len(self._parked) > self.limits.max_sessions:
            active = Counter(lease.owner for lease in self._active.values())
            return active + Counter(parked.owner for parked in self._parked.values())
        num_bytes: Counter[str] = Counter()
        for parked in self._parked.values():
            num_bytes[parked.owner] += parked.num_bytes
        return num_bytes if num_bytes.total() > self.limits.max_parked_bytes else Counter()

    async def _evict(self, session_id: str) -> None:
        parked = self._parked.pop(session_id, None)
        if parked is not None:
            parked.timer.cancel()
            await self.release(session_id)

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
