"""Where the replicas of both pools are, and what they say of themselves: one deployment of both.

Whoever is silent for a while is gone. No round passes here, and nothing is lost with it: replicas
say it all again within a second. Knows neither Ray nor services.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TTL_S = 5.0
"""How long a replica is listed after it has said something."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Addresses by role."""

    addresses: dict[str, tuple[str, ...]]
    is_whole: bool
    """Whether everybody has had the time to say that he is there."""


@dataclass(frozen=True, slots=True)
class _Said:
    role: str
    draft_wait: float
    at_s: float


class Directory:
    """For one event loop."""

    def __init__(self, *pools: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """`pools` are deployments, which belong to this one's application by that."""
        self._pools = pools
        self._clock = clock
        self._began_s = clock()
        self._said: dict[str, _Said] = {}

    async def announce(self, role: str, address: str, draft_wait: float) -> float:
        """A replica is there. The answer is the mean share of time that targets wait for drafts."""
        self._said[address] = _Said(role, draft_wait, self._clock())
        waits = [said.draft_wait for said in self._live().values() if said.role == "target"]
        return sum(waits) / len(waits) if waits else 0.0

    async def listing(self) -> Listing:
        """Who is there."""
        live = self._live()
        found = {
            role: tuple(sorted(at for at, said in live.items() if said.role == role))
            for role in ("target", "draft")
        }
        return Listing(found, self._clock() - self._began_s >= TTL_S)

    async def __call__(self, _request: Any = None) -> dict[str, int]:
        """How many there are, for whoever asks over HTTP."""
        listing = await self.listing()
        return {f"{role}s": len(found) for role, found in listing.addresses.items()}

    def _live(self) -> dict[str, _Said]:
        now = self._clock()
        self._said = {at: said for at, said in self._said.items() if now - said.at_s < TTL_S}
        return self._said
