"""A session's keys and values as they came from its target: a prefix that grows, and is read.

One thread writes while another reads. Knows positions and tensors; nothing of where they come from.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.draft.memory import ByteBudget
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, round_up
from slipstream.models.scorer import KvView

Fill = Callable[[Sequence[Tensor]], None]
"""Writes a slice into buffers, one a layer, [2 * kv_heads, slots, head_dim]: keys, then values."""


class KvMirror:
    """Positions 0..count-1 of some layers of a target's cache.

    What a view has shown never changes under its reader: positions are only added behind it, and
    where some are replaced, the buffers are too.
    """

    def __init__(
        self,
        layers: Sequence[int],
        layout: KvLayout,
        *,
        limit: int,
        budget: ByteBudget | None = None,
    ) -> None:
        """Nothing yet of `layers`; `layout` is of that many layers. At most `limit` positions.

        Its buffers count against `budget`, which it shares with others.
        """
        if len(layers) != layout.num_layers:
            raise InvalidRequest(f"{len(layers)} layers are named, the layout has others")
        self.limit = limit
        self._layers = tuple(layers)
        self._layout = layout
        self._budget = budget or ByteBudget()
        # Count and buffers change together, so that a reader never sees one without the other.
        self._held: tuple[int, list[Tensor]] = (0, self._new_buffers(0))
        self._num_written = 0

    @property
    def count(self) -> int:
        """Positions held."""
        return self._held[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers."""
        return self._num_slots * self._layout.bytes_per_token

    def reserve(self, count: int) -> None:
        """Make room for `count` positions, as far as the limit goes. Raises `NoRoom`."""
        if min(count, self.limit) > self._num_slots:
            self._replace_buffers(min(count, self.limit))

    def write(self, start: int, count: int, fill: Fill) -> None:
        """Hold positions start..start+count-1 as `fill` writes them, and none behind them.

        Raises `InvalidRequest` for a gap before them, `CapacityError` above the limit or the
        budget, and what `fill` raises; positions from `start` on are then gone, the rest is as it
        was.
        """
        end = start + count
        if not 0 <= start <= self.count:
            raise InvalidRequest(
                f"keys and values from position {start} on were sent, but {self.count} are held"
            )
        if end > self.limit:
            raise CapacityError(
                f"{end} positions of keys and values were sent, but the limit is {self.limit}"
            )
        self.truncate(start)
        if end > self._num_slots:
            self._replace_buffers(min(max(end, self._num_slots * 3 // 2), self.limit))
        elif start < self._num_written:
            self._replace_buffers(self._num_slots)
        buffers = self._held[1]
        self._num_written = end
        fill(buffers)
        self._held = (end, buffers)

    def truncate(self, count: int) -> None:
        """Forget every position from `count` on."""
        if count < self.count:
            self._held = (count, self._held[1])

    def free(self) -> None:
        """Forget everything and give the memory back. It may be written again."""
        self._budget.give(self.num_bytes)
        self._num_written = 0
        self._held = (0, self._new_buffers(0))

    def view(self) -> KvView:
        """What is held now, without a copy. Called from any thread."""
        count, buffers = self._held
        half = self._layout.num_kv_heads
        pairs = {
            layer: (buffer[:half], buffer[half:])
            for layer, buffer in zip(self._layers, buffers, strict=True)
        }
        return KvView(count, pairs)

    @property
    def _num_slots(self) -> int:
        return int(self._held[1][0].shape[1])

    def _new_buffers(self, num_slots: int) -> list[Tensor]:
        at = self._layout
        shape = (2 * at.num_kv_heads, num_slots, at.head_dim)
        return [torch.empty(shape, dtype=at.dtype, device=at.device) for _ in self._layers]

    def _replace_buffers(self, num_slots: int) -> None:
        count, old = self._held
        num_slots = round_up(num_slots, BLOCK_SIZE)
        self._budget.take((num_slots - self._num_slots) * self._layout.bytes_per_token)
        new = self._new_buffers(num_slots)
        for source, into in zip(old, new, strict=True):
            into[:, :count] = source[:, :count]
        self._num_written = count
        self._held = (count, new)
