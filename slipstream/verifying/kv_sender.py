"""Copies of a session's keys and values for a reader elsewhere, and what the reader has of them.

Everything here runs on the engine's thread, so a copy never meets a forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.errors import SessionClosed, SessionOutOfSync
from slipstream.models.dtypes import Array
from slipstream.models.kv.cache import KvCache, view_layout


@dataclass(frozen=True, slots=True)
class KvSlice:
    """A copy of positions start..start+count-1 on the CPU.

    `values` are [layers, 2 * kv_heads, count, head_dim], the keys of a layer before its values; of
    hidden states [layers, 2, count, hidden / 2].
    """

    start: int
    values: Array

    @property
    def count(self) -> int:
        """Number of positions."""
        return int(self.values.shape[2])


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

    def truncate(self, count: int) -> None:
        """Go back to position `count`: what was held from there on is replaced."""
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

    def take(self, max_positions: int) -> KvSlice | None:
        """Copy what comes next, up to so many positions; None when there is nothing new.

        Raises `SessionClosed` once the session is gone.
        """
        cache = self._cache
        if cache is None:
            raise SessionClosed("the session whose keys and values were read is gone")
        count = min(cache.count - self.position, max_positions)
        if self.position < self._skipped.start:
            count = min(count, self._skipped.start - self.position)
        if count <= 0:
            return None
        start, end = self.position, self.position + count
        layers = [cache.gather(layer, start, end) for layer in self._layers]
        values = np.empty((len(layers), *layers[0].shape), cache.pool.layout.dtype)
        for place, layer in zip(values, layers, strict=True):
            place[...] = cache.pool.buffers.on_host(layer)
        self._move(end)
        return KvSlice(start, values)
