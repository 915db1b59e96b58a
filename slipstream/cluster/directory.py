"""The replicas of both pools, and the files from which a router reads their addresses.

A replica that is silent for a while is gone. No round passes here, and nothing is lost with it:
replicas announce themselves again within a second. Needs no Ray.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TTL_S = 5.0
"""Time for which a replica is listed after it has announced itself."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Addresses by role."""

    addresses: dict[str, tuple[str, ...]]
    is_whole: bool
    """True once every replica has had the time to announce itself."""


@dataclass(frozen=True, slots=True)
class _ReplicaEntry:
    role: str
    at_s: float


class Directory:
    """The replicas of both pools, as a deployment of Serve. For one event loop."""

    def __init__(self, *pools: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """`pools` are deployments that become part of this one's application."""
        self._pools = pools
        self._clock = clock
        self._began_s = clock()
        self._known: dict[str, _ReplicaEntry] = {}

    async def announce(self, role: str, address: str) -> None:
        """List a replica."""
        self._known[address] = _ReplicaEntry(role, self._clock())

    async def listing(self) -> Listing:
        """Return the live replicas by role."""
        live = self._live()
        found = {
            role: tuple(sorted(address for address, entry in live.items() if entry.role == role))
            for role in ("target", "draft")
        }
        return Listing(found, self._clock() - self._began_s >= TTL_S)

    async def __call__(self, _request: Any = None) -> dict[str, int]:
        """Return the number of replicas by role, for HTTP."""
        listing = await self.listing()
        return {f"{role}s": len(found) for role, found in listing.addresses.items()}

    def _live(self) -> dict[str, _ReplicaEntry]:
        now = self._clock()
        self._known = {
            address: entry for address, entry in self._known.items() if now - entry.at_s < TTL_S
        }
        return self._known


class AddressFiles:
    """Addresses of replicas for one router: one file per role, an address a line."""

    def __init__(self, roles: Sequence[str]) -> None:
        """Make a directory with a file for each role, empty at first."""
        self._place = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self._known: dict[str, frozenset[str]] = {}
        for role in roles:
            self._write(role, frozenset())

    def path(self, role: str) -> Path:
        """Return the file of a role."""
        return self._place / role

    def update(self, listing: Listing) -> None:
        """Write the addresses. As long as a listing is not whole, none is removed."""
        for role, known in list(self._known.items()):
            found = frozenset(listing.addresses.get(role, ()))
            wanted = found if listing.is_whole else known | found
            if wanted != known:
                self._write(role, wanted)

    def remove(self) -> None:
        """Remove the directory. May be repeated."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _write(self, role: str, addresses: frozenset[str]) -> None:
        new = self._place / f"{role}.new"
        new.write_text("".join(f"{address}\n" for address in sorted(addresses)), encoding="utf-8")
        os.replace(new, self.path(role))  # a reader never gets half a file
        self._known[role] = addresses
