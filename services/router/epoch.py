"""A stretch of time in which a replica could be relied on, and the news that it is over.

Knows neither replicas nor requests: one side ends it, the other waits for that.
"""

import asyncio


class Epoch:
    """From when a replica was described until it is lost. Another one begins when it is back.

    Whoever runs a request on a replica takes its `epoch` when the request is placed, and races
    `lost` against whatever it waits for. A replica that drains is not lost.
    """

    def __init__(self) -> None:
        self._lost = asyncio.Event()
        self._reason = ""

    @property
    def is_lost(self) -> bool:
        """Whether it is over. What runs on the replica has nobody to answer it any more."""
        return self._lost.is_set()

    @property
    def reason(self) -> str:
        """Why it is over; empty while it is not."""
        return self._reason

    async def lost(self) -> str:
        """Wait until it is over; why. May be cancelled, and awaited by many."""
        await self._lost.wait()
        return self._reason

    def end(self, reason: str) -> None:
        """It is over, for good. Again changes nothing."""
        if not self.is_lost:
            self._reason = reason
            self._lost.set()
