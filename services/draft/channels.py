"""Channels to the targets that a draft reads from: one per address, shared by its sessions.

Knows who uses which; not what is said.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from slipstream.draft.sources import dialled
from slipstream.rpc.certificates import Stamp
from slipstream.rpc.channel import ChannelOptions, Dialer

MAX_IDLE = 4
"""Unused channels that stay open, so that a target's next session need not connect anew."""

_Way = tuple[str, Stamp]
"""An address, and the certificates that it was dialled with."""


class Channels:
    """Open channels by address. Close them all in the end.

    Once certificates have changed, the next caller gets another channel, with the new ones.
    """

    def __init__(self, options: ChannelOptions) -> None:
        """Raises `InvalidRequest` for certificates that can't be used."""
        self._dial = Dialer(options)
        self._used: dict[_Way, tuple[grpc.aio.Channel, int]] = {}
        self._idle: OrderedDict[_Way, grpc.aio.Channel] = OrderedDict()

    @property
    def num_open(self) -> int:
        """Channels, used and idle."""
        return len(self._used) + len(self._idle)

    @asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """A channel to HOST:PORT for as long as it is needed."""
        way = address, self._dial.stamp()
        channel = self._take(way)
        try:
            yield channel
        finally:
            for unused in self._give(way):
                await unused.close()

    async def close(self) -> None:
        """Close channels without users."""
        while self._idle:
            await self._idle.popitem()[1].close()

    def _take(self, way: _Way) -> grpc.aio.Channel:
        if way in self._used:
            channel, num_users = self._used[way]
        elif way in self._idle:
            channel, num_users = self._idle.pop(way), 0
        else:
            channel, num_users = self._dial(dialled(way[0])), 0
        self._used[way] = (channel, num_users + 1)
        return channel

    def _give(self, way: _Way) -> list[grpc.aio.Channel]:
        """Channels to close: one too many, and those whose certificates are no more."""
        channel, num_users = self._used.pop(way)
        if num_users > 1:
            self._used[way] = (channel, num_users - 1)
            return []
        self._idle[way] = channel
        stamp = self._dial.stamp()
        outdated = [self._idle.pop(old) for old in tuple(self._idle) if old[1] != stamp]
        if len(self._idle) > MAX_IDLE:
            outdated.append(self._idle.popitem(last=False)[1])
        return outdated
