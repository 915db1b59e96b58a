"""Targets, drafts and a router as processes, over wires of this machine. Prints nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream.bench.services import processor_s
from slipstream.client import AsyncClient
from slipstream.core.errors import ServiceError
from slipstream.local.child import Child, start_child
from slipstream.local.stack import ANY_PORT

READY_S = 60.0
_GRACE_S = 5.0
_LOOK_S = 0.05
# Nothing is computed: threads that look for work would only disturb.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(slots=True)
class Engines:
    """Processes of both roles, and where they serve."""

    targets: list[str]
    drafts: list[str]
    children: list[Child]

    def cpu_s(self) -> float:
        """Processor seconds of all of them so far."""
        return sum(processor_s(child.pid) for child in self.children)


@asynccontextmanager
async def engines(recording: Path, *, targets: int, drafts: int) -> AsyncIterator[Engines]:
    """So many of each, while the context lasts. Raises what `Child.ready` does."""
    roles = ["target"] * targets + ["draft"] * drafts
    children: list[Child] = []
    try:
        for role in roles:
            flags = [role, str(recording)]
            module = "slipstream.bench.timed.serve"
            children.append(await start_child(role, module, flags, say=_drop, defaults=_ONE_THREAD))
        addresses = [await child.ready() for child in children]
        yield Engines(addresses[:targets], addresses[targets:], children)
    finally:
        await asyncio.gather(*(child.stop(_GRACE_S) for child in children))


@asynccontextmanager
async def routed(
    running: Engines, *, targets: int, drafts: int, users: int
) -> AsyncIterator[tuple[AsyncClient, Child]]:
    """A router over the first so many of each, and a client of it once all are ready."""
    flags = ["--address", ANY_PORT, "--targets", ",".join(running.targets[:targets])]
    if drafts:
        flags += ["--drafts", ",".join(running.drafts[:drafts])]
    # A slow draft is to be waited for, and everybody to be let in.
    flags += ["--draft-round-timeout-s", "60", "--max-requests", str(max(users, 64))]
    child = await start_child("router", "slipstream.router", flags, say=_drop)
    try:
        async with AsyncClient(await child.ready()) as client:
            await _all_ready(client, targets + drafts)
            yield client, child
    finally:
        await child.stop(_GRACE_S)


async def _all_ready(client: AsyncClient, count: int) -> None:
    states: Sequence[str] = ()
    try:
        async with asyncio.timeout(READY_S):
            while states.count("ready") < count:
                await asyncio.sleep(_LOOK_S)
                states = [at.state for at in (await client.server_info()).replicas]
    except TimeoutError:
        said = ", ".join(states) or "there are none"
        raise ServiceError(f"after {READY_S:g} s the replicas are not ready: {said}") from None


def _drop(name: str, line: str) -> None:
    """What they log is not what is measured; what keeps one from starting is raised."""
