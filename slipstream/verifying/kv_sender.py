"""Slices of a session's keys and values for a reader elsewhere, and what the reader has of them.

Everything here runs on the engine's thread, unless it says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.errors import SessionClosed, SessionOutOfSync
from slipstream.models.dtypes import CPU, Array
from slipstream.models.kv.cache import KvCache, view_layout
from slipstream.models.kv.pool import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class KvSlice:
    """Positions start..start+count-1 on the CPU, where possible without a copy.

    Each of `layers` is [2 * kv_heads, count, head_dim], keys before values; of hidden states
    [2, count, hidden / 2]. Another thread may copy them, and then asks `KvSender.holds`.
    """

    start: int
    layers: tuple[Array, ...]
    pages: tuple[int, ...]
    """Pages of the positions."""

    @property
    def count(self) -> int:
        """Number of positions."""
        return int(self.layers[0].shape[1])


class KvSender:
    """A reader's position in a cache: everything below `position` was taken for it, but for the
    positions `skipped`."""

    def __init__(
        self, cache: KvCache, layers: Sequence[int], start: int, skipped: range = range(0)
    ) -> None:
        """Raises what `view_layout` does, `SessionOutOfSync` for a start above what is held and
        skipped."""
        view_layout(cache.pool.layout, layers)
        if not 0 <= start <= cache.count and start != skipped.stop:
            raise SessionOutOfSync(
                f"keys and values from position {start} on were asked for, but {cache.count}"
                " positions are held"
            )
        self._cache: KvCache | None = cache
        self._layers = tuple(layers)
        self._skipped = skipped
        self.position = start
        self.num_ahead = 0
        """Positions that are taken as soon as they are final, at most: fewer than a job of the
        engine's thread is worth."""
        self._ahead: KvSlice | None = None

    def truncate(self, count: int) -> None:
        """Go back to position `count`: what was held from there on is replaced."""
        ahead = self._ahead
        if ahead is not None and ahead.start + ahead.count > count:
            self.position, self._ahead = ahead.start, None
        self._move(min(self.position, count))

    def _move(self, position: int) -> None:
        self.position = self._skipped.stop if position in self._skipped else position

    @property
    def is_closed(self) -> bool:
        """True once the session is gone."""
        return self._cache is None

    def close(self) -> None:
        """Let go of the cache: the session is gone."""
        self._cache = None

    @property
    def is_behind(self) -> bool:
        """True if there is something to take. Any thread, between two verdicts."""
        return self._cache is None or self.position < self._cache.count

    def look_ahead(self) -> None:
        """Take what has become final now, if that is little and needs no copy from a device."""
        cache = self._cache
        if cache is None or cache.pool.layout.device != CPU or self._ahead is not None:
            return
        if 0 < cache.count - self.position <= self.num_ahead:
            self._ahead = self.take(self.num_ahead)

    def taken_ahead(self) -> KvSlice | None:
        """Return what was taken ahead, once. Any thread, between two verdicts."""
        ahead, self._ahead = self._ahead, None
        return ahead

    def take(self, max_positions: int) -> KvSlice | None:
        """Return what comes next, up to so many positions; None when there is nothing new.

        Raises `SessionClosed` once the session is gone.
        """
        cache, ahead = self._cache, self.taken_ahead()
        if ahead is not None:
            return ahead
        if cache is None:
            raise SessionClosed("the session whose keys and values were read is gone")
        count = min(cache.count - self.position, max_positions)
        if self.position < self._skipped.start:
            count = min(count, self._skipped.start - self.position)
        if count <= 0:
            return None
        start, end = self.position, self.position + count
        layers = (cache.gather(layer, start, end) for layer in self._layers)
        on_host = tuple(map(cache.pool.buffers.on_host, layers))
        self._move(end)
        return KvSlice(start, on_host, _pages(cache, start, end))

    def holds(self, piece: KvSlice) -> bool:
        """Return whether the positions of a slice are still there, until the next is taken: then no
        forward has written to them, and a copy is whole. Any thread."""
        cache, end = self._cache, piece.start + piece.count
        if cache is None or self.position < end:
            return False
        return piece.pages == _pages(cache, piece.start, end)


def _pages(cache: KvCache, start: int, end: int) -> tuple[int, ...]:
    return tuple(cache.pages[start // BLOCK_SIZE : -(-end // BLOCK_SIZE)])
