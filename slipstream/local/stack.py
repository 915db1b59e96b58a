"""Target, draft and router as processes on this machine, and the HTTP front if it is wanted.

The end of a draft is no problem: it is started again, and meanwhile the router does without. The
end of another process ends all.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from slipstream.core.errors import InvalidRequest, ServiceError
from slipstream.local.child import Child, OnLine, start_child
from slipstream.options import Bounded, option

T = TypeVar("T")
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
ANY_PORT = "127.0.0.1:0"
HTTP = "http"
"""The front for OpenAI's clients, where one is wanted."""
# Draft and target take turns on the same cores. A thread with nothing to do stops spinning soon,
# and none moves: otherwise two that wait for each other meet on one core, for a time slice each.
_TAKING_TURNS = {"GOMP_SPINCOUNT": "50000"}
_STAYING = ("--pin-threads",)
_SPARE_S = 15.0
"""Time beyond its own grace that a service gets before it is killed: it exports its last
telemetry, to a collector that may not answer."""


@dataclass(frozen=True, slots=True)
class StackPlan(Bounded):
    """The services by role, each with its flags but for the addresses of the others. Those of
    `target` and `router` are needed; `draft` and `http` start where they are there."""

    flags: Mapping[str, tuple[str, ...]]
    port: int = option(0, "Port of the router; 0 takes any that is free.", least=0, most=65535)
    grace_s: float = option(
        30.0, "Time for requests in flight when the services are to stop.", least=0, most=3600
    )
    takes_turns: bool = True
    """True if draft and target each use all the cores of this machine."""
    http_port: int = option(0, "Port of the front.", least=0, most=65535)


class Stack:
    """The services, for one event loop: `start`, then `watch`; `stop` in any case."""

    def __init__(self, plan: StackPlan, *, on_line: OnLine) -> None:
        self._plan = plan
        self._on_line = on_line
        self._children: dict[str, Child] = {}
        self._needed: list[asyncio.Task[None]] = []
        """Waits for the end of the services whose end ends all; each of them raises."""
        self._launching: asyncio.Task[Child] | None = None

    async def start(self) -> str:
        """Start all; return the router's address once it serves.

        Raises what `Child.ready` does for the first service that fails, whatever the others still
        load, and `ServiceError` for a port that is in use, before anything loads.
        """
        _require_free("router", self._plan.port)
        if HTTP in self._plan.flags:
            _require_free("HTTP front", self._plan.http_port)
        roles = [role for role in ("target", "draft") if role in self._plan.flags]
        engines = [await self._launch(role, ANY_PORT) for role in roles]
        places = zip(roles, await self._ready(*engines), strict=True)
        flags = [part for role, place in places for part in (f"--{role}s", place)]
        listen = f"127.0.0.1:{self._plan.port}"
        router = await self._launch("router", listen, *flags)
        (address,) = await self._ready(router)
        if HTTP in self._plan.flags:
            listen = f"127.0.0.1:{self._plan.http_port}"
            await self._ready(await self._launch(HTTP, listen, "--router", address, "--page"))
        return address

    async def watch(self) -> None:
        """Start the draft anew whenever it ends. Raises `ServiceError` once another one has."""
        await self._while_needed(self._keep_draft())

    async def stop(self, *, hurry: bool = False) -> None:
        """End from the front to the engines; each has the grace, unless in a hurry."""
        for task in self._needed:
            task.cancel()
        await asyncio.gather(*self._needed, return_exceptions=True)
        if self._launching is not None:
            await asyncio.wait({self._launching})
        grace_s = 0.0 if hurry else self._plan.grace_s + _SPARE_S
        for roles in ((HTTP,), ("router",), ("draft", "target")):
            children = [self._children[role] for role in roles if role in self._children]
            await asyncio.gather(*(child.stop(grace_s) for child in children))

    async def _ready(self, *children: Child) -> list[str]:
        """Return the addresses of these, once all serve. The first that fails ends the wait."""
        return await self._while_needed(asyncio.gather(*(child.ready() for child in children)))

    async def _while_needed(self, work: Awaitable[T]) -> T:
        """Return the value of the work; the end of a service whose end ends all raises."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, *self._needed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.gather(*(need for need in self._needed if need.done()))  # raises
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _need(self, child: Child) -> None:
        """Wait for the end of a service, and raise: what `Child.ready` does, or `ServiceError`."""
        await child.ready()
        await child.ended()
        raise ServiceError(f"the {child.name} {child.exit_text()}, so everything stops")

    async def _keep_draft(self) -> None:
        if "draft" not in self._plan.flags:
            await asyncio.Event().wait()
        address = await self._children["draft"].ready()  # the address that the router has
        pause_s = FIRST_PAUSE_S
        while True:
            await self._children["draft"].ended()
            ended = self._children["draft"].exit_text()
            self._on_line("draft", f"{ended}; it is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            draft = await self._launch("draft", address)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            with suppress(InvalidRequest, ServiceError):
                await draft.ready()
                pause_s = FIRST_PAUSE_S

    async def _launch(self, role: str, address: str, *flags: str) -> Child:
        """Start a service, also when this is cancelled: `stop` must know of the process."""
        self._launching = asyncio.create_task(self._launched(role, address, flags))
        return await asyncio.shield(self._launching)

    async def _launched(self, role: str, address: str, flags: Sequence[str]) -> Child:
        takes_turns = self._plan.takes_turns and role in ("target", "draft")
        place = "--listen-address" if role == HTTP else "--address"
        common = [place, address, "--grace-s", f"{self._plan.grace_s:g}"]
        common += _STAYING if takes_turns else ()
        child = await start_child(
            role,
            "slipstream_gateway" if role == HTTP else f"slipstream_{role}",
            [*common, *flags, *self._plan.flags[role]],
            on_line=self._on_line,
            defaults=_TAKING_TURNS if takes_turns else None,
        )
        self._children[role] = child
        if role != "draft":
            self._needed.append(asyncio.create_task(self._need(child)))
        return child


def _require_free(role: str, port: int) -> None:
    """Raise `ServiceError` for a port that the service `role` could not listen on; 0 is any."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        what = f"127.0.0.1:{port} can't be listened on ({os.strerror(error.errno or 0)})"
        raise ServiceError(f"the {role} can't start: the address {what}") from None
