"""A service that announces itself for as long as it runs. Knows the registry; not the service."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from slipstream.core.errors import Unavailable
from slipstream.state.announcement import Announcement
from slipstream.state.opening import open_registry
from slipstream.state.options import StoreOptions

EVERY_S = 1.0
_LOG = logging.getLogger("slipstream.state")


class Listing(Protocol):
    """Where replicas are listed; see `Registry`."""

    async def announce(self, replica: Announcement) -> None:
        """List a replica. Raises `Unavailable`."""
        ...

    async def leave(self, replica: Announcement) -> None:
        """List it no more. Raises `Unavailable`."""
        ...


@asynccontextmanager
async def announced_in(
    options: StoreOptions, about: Callable[[], Announcement]
) -> AsyncIterator[None]:
    """Announce what `about` says for as long as the block runs; without a store, nobody is told."""
    if options.url is None:
        yield
        return
    async with aclosing(open_registry(options)) as registry, announced(registry, about):
        yield


@asynccontextmanager
async def announced(
    listing: Listing, about: Callable[[], Announcement], *, every_s: float = EVERY_S
) -> AsyncIterator[None]:
    """Announce what `about` says for as long as the block runs, then leave.

    A store that does not answer is no reason to end: the replica serves whoever knows it.
    """
    announcing = asyncio.get_running_loop().create_task(_announce(listing, about, every_s))
    try:
        yield
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        try:
            await listing.leave(about())
        except Unavailable as error:
            _LOG.warning("the replica is listed until it is missed: %s", error)


async def _announce(listing: Listing, about: Callable[[], Announcement], every_s: float) -> None:
    problem = ""
    while True:
        try:
            await listing.announce(about())
        except Unavailable as error:
            if not problem:
                _LOG.warning("the replica can't announce itself: %s", error)
            problem = str(error)
        else:
            if problem:
                _LOG.info("the replica announces itself again")
            problem = ""
        await asyncio.sleep(every_s)
