"""Channels to the targets that a draft reads from: one per address, shared by its sessions.

Knows who uses which; not what is said.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from slipstream.rpc.channel import ChannelOptions, connect

MAX_IDLE = 4
"""Unused channels that stay open, so that a target's next session need not connect anew."""


class Channels:
    """Open channels by address. Close them all in the end."""

    def __init__(self, options: ChannelOptions) -> None:
        self._options = options
        self._used: dict[str, tuple[grpc.aio.Channel, int]] = {}
        self._idle: OrderedDict[str, grpc.aio.Channel] = OrderedDict()

    @property
    def num_open(self) -> int:
        """Channels, used and idle."""
        return len(self._used) + len(self._idle)

    @asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """A channel for as long as it is needed. Raises `InvalidRequest` for no address."""
        channel = self._take(address)
        try:
            yield channel
        finally:
            unused = self._give(address)
            if unused is not None:
                await unused.close()

    async def close(self) -> None:
        """Close what nobody uses."""
        while self._idle:
            await self._idle.popitem()[1].close()

    def _take(self, address: str) -> grpc.aio.Channel:
        if address in self._used:
            channel, num_users = self._used[address]
        elif address in self._idle:
            channel, num_users = self._idle.pop(address), 0
        else:
            channel, num_users = connect(address, self._options), 0
        self._used[address] = (channel, num_users + 1)
        return channel

    def _give(self, address: str) -> grpc.aio.Channel | None:
        """A channel to close, if there is one too many."""
        channel, num_users = self._used.pop(address)
        if num_users > 1:
            self._used[address] = (channel, num_users - 1)
            return None
        self._idle[address] = channel
        return self._idle.popitem(last=False)[1] if len(self._idle) > MAX_IDLE else None
