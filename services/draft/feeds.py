"""Every session's feed of keys and values, behind the seam where a draft reads them.

Knows which session reads from where, and what that adds up to; how one is read is `feed.py`'s.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from slipstream.core.errors import NoRoom
from slipstream.draft.channels import Channels
from slipstream.draft.feed import FeedAddress, KvFeed
from slipstream.draft.memory import ByteBudget
from slipstream.draft.mirror import KvMirror
from slipstream.draft.sources import KvSources
from slipstream.models.kv.pool import KvLayout
from slipstream.models.scorer import KvView
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.kv import KvFormat
from slipstream.rpc.tensors import torch_dtype
from slipstream.telemetry.spans import Reply


@dataclass(frozen=True, slots=True)
class FeedNeed:
    """What a session needs of its feed.

    `limit` bounds its positions; it has `num_tokens` tokens now, the first `num_same` of which it
    had before.
    """

    form: KvFormat
    limit: int
    num_tokens: int
    num_same: int


class KvFeeds:
    """`draft.engine.KvSource` over streams from targets. `view` may be called from any thread."""

    def __init__(
        self, options: ChannelOptions, device: torch.device, sources: KvSources | None = None
    ) -> None:
        """`options` say how targets are dialled; `device` is where the draft reads; `sources` are
        the targets that are allowed, by default those of this machine."""
        self._channels = Channels(options)
        self._sources = sources or KvSources()
        self._device = device
        self._feeds: dict[str, KvFeed] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._num_bytes_before = 0
        self.budget = ByteBudget(make_room=self._make_room)
        """Of all mirrors: those at rest give way to those that are read."""

    @property
    def num_reading(self) -> int:
        """Sessions that are being kept up to date."""
        return sum(feed.is_reading for feed in self._feeds.values())

    @property
    def num_channels(self) -> int:
        """Connections to targets; few of them are open in vain."""
        return self._channels.num_open

    @property
    def num_received_bytes(self) -> int:
        """Bytes of keys and values that were received, of sessions that are gone too."""
        return self._num_bytes_before + sum(
            feed.num_received_bytes for feed in self._feeds.values()
        )

    def kv_bytes(self, session_id: str) -> int:
        """Bytes of the keys and values held for a session."""
        feed = self._feeds.get(session_id)
        return 0 if feed is None else feed.mirror.num_bytes

    @property
    def num_kv_bytes(self) -> int:
        """The same of all sessions."""
        return sum(feed.mirror.num_bytes for feed in self._feeds.values())

    def view(self, session_id: str, layers: Sequence[int]) -> KvView:
        """See `KvSource.view`; the layers are those of the session's form."""
        feed = self._feeds.get(session_id)
        return KvView(0, {}) if feed is None else feed.mirror.view()

    def is_following(self, session_id: str, at: FeedAddress) -> bool:
        """Whether a session is being kept up to date from there."""
        feed = self._feeds.get(session_id)
        return feed is not None and feed.is_following(at)

    def follow(
        self,
        session_id: str,
        at: FeedAddress,
        need: FeedNeed,
        *,
        begun_by: Reply | None = None,
    ) -> bool:
        """Keep a session up to date from there; False where that has ended for good.

        What is begun is told as part of `begun_by`. Raises what `KvSources.check` does.
        """
        self._sources.check(at.address)
        feed = self._feeds.get(session_id)
        if feed is None or feed.form != need.form:
            self.close(session_id)
            form = need.form
            feed = self._feeds[session_id] = self._feed(form)
        feed.mirror.limit = need.limit
        is_read = feed.follow(at, num_same=need.num_same, begun_by=begun_by)
        if is_read:
            with suppress(NoRoom):  # the reader will say so, and try again
                feed.mirror.reserve(need.num_tokens)
        return is_read

    async def wait(self, session_id: str, count: int, timeout_s: float) -> bool:
        """Until `count` positions are there, or the time is up, or none are to come.

        Whether they had to be waited for.
        """
        feed = self._feeds.get(session_id)
        if feed is None or feed.mirror.count >= count:
            return False
        await feed.wait(count, timeout_s)
        return True

    def rest(self, session_id: str) -> None:
        """Stop reading between two turns; what was read stays."""
        feed = self._feeds.pop(session_id, None)
        if feed is not None:
            self._feeds[session_id] = feed  # the last one to give way
            feed.rest()

    def close(self, session_id: str) -> asyncio.Task[None] | None:
        """Forget a session at once; its reader, if it had one, to be waited for until it ends."""
        feed = self._feeds.pop(session_id, None)
        if feed is None:
            return None
        self._num_bytes_before += feed.num_received_bytes
        reader = feed.stop()
        feed.mirror.free()
        return reader

    async def aclose(self) -> None:
        """End every reader and close every channel."""
        for session_id in list(self._feeds):
            self.close(session_id)
        while self._readers:
            await asyncio.wait(self._readers)
        await self._channels.close()

    def _make_room(self, num_bytes: int) -> None:
        """Free what is at rest, the longest first, as far as needed."""
        for feed in self._feeds.values():
            if self.budget.has(num_bytes):
                return
            if not feed.is_reading:
                feed.mirror.free()

    def _feed(self, form: KvFormat) -> KvFeed:
        layout = KvLayout(
            len(form.layers),
            form.num_kv_heads,
            form.head_dim,
            torch_dtype(form.dtype),
            self._device,
        )

        def new_mirror(limit: int) -> KvMirror:
            return KvMirror(form.layers, layout, limit=limit, budget=self.budget)

        return KvFeed(self._channels, self._readers, new_mirror, form)
