"""Files in which a router reads where replicas are: one per role, an address a line."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slipstream.cluster.directory import Listing


class AddressFiles:
    """Those of one router, in a directory of their own."""

    def __init__(self, roles: Sequence[str]) -> None:
        """They are empty at first."""
        self._place = Path(tempfile.mkdtemp(prefix="slipstream-"))
        self._known: dict[str, frozenset[str]] = {}
        for role in roles:
            self._write(role, frozenset())

    def path(self, role: str) -> Path:
        """The file of a role."""
        return self._place / role

    def update(self, listing: Listing) -> None:
        """Write down who is there. As long as a listing is not whole, nobody is struck out."""
        for role, known in list(self._known.items()):
            found = frozenset(listing.addresses.get(role, ()))
            wanted = found if listing.is_whole else known | found
            if wanted != known:
                self._write(role, wanted)

    def remove(self) -> None:
        """Leave nothing behind. Again is fine."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _write(self, role: str, addresses: frozenset[str]) -> None:
        new = self._place / f"{role}.new"
        new.write_text("".join(f"{at}\n" for at in sorted(addresses)), encoding="utf-8")
        os.replace(new, self.path(role))  # nobody reads half a file
        self._known[role] = addresses
