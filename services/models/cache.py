"""Keys and values of one session, in place. Knows positions and slots, not tokens or trees."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.errors import CapacityError
from slipstream.models.scorer import KvView

KEY_BLOCK = 128
"""Key ranges are padded to a multiple of this, so buffers come in multiples of it too."""


def round_up(count: int, block: int) -> int:
    """The smallest multiple of `block` that is at least `count`."""
    return -(-count // block) * block


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of a model's cache: one pair of [kv_heads, capacity, head_dim] a layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KvCache:
    """Preallocated keys and values of one session.

    Slot i below `count` holds position i. Slots from `count` on are scratch for the rows of
    one forward. The buffers start at zero: what is masked must still be a finite number.
    """

    def __init__(self, layout: KvLayout, capacity: int, *, limit: int) -> None:
        """Room for `capacity` tokens now, growing on demand up to `limit` of them."""
        self.layout = layout
        self.limit = limit
        self.count = 0
        self._slots = 0
        self._layers: list[Tensor] = []
        self.reserve(capacity)

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self._slots * self.layout.bytes_per_token

    def reserve(self, num_slots: int) -> None:
        """Make room for slots 0..num_slots-1. Raises `CapacityError` above the limit."""
        if num_slots <= self._slots:
            return
        if num_slots > self.limit:
            raise CapacityError(
                f"{num_slots} cache slots are needed, but the limit is {self.limit}"
            )
        grown = min(max(num_slots, self._slots * 3 // 2), self.limit)
        self._slots = round_up(grown, KEY_BLOCK)
        at = self.layout
        shape = (2 * at.num_kv_heads, self._slots, at.head_dim)
        old = self._layers
        self._layers = [
            torch.zeros(shape, dtype=at.dtype, device=at.device) for _ in range(at.num_layers)
        ]
        for source, into in zip(old, self._layers, strict=False):
            into[:, : self.count] = source[:, : self.count]

    def layer(self, index: int) -> Tensor:
        """One layer, [2 * kv_heads, slots, head_dim]: its keys, then its values."""
        return self._layers[index]

    def truncate(self, count: int) -> None:
        """Forget every position from `count` on."""
        self.count = min(self.count, count)

    @torch.inference_mode()
    def keep(self, slots: Sequence[int]) -> None:
        """Make the rows in `slots` the positions that follow `count`, moving them in place."""
        goal = range(self.count, self.count + len(slots))
        moves = [(a, b) for a, b in zip(slots, goal, strict=True) if a != b]
        if moves:
            source = torch.tensor([a for a, _ in moves], device=self.layout.device)
            into = torch.tensor([b for _, b in moves], device=self.layout.device)
            for buffer in self._layers:
                # The gather is complete before anything is written: the ranges may overlap.
                buffer.index_copy_(1, into, buffer.index_select(1, source))
        self.count = goal.stop

    def view(self, layers: Sequence[int]) -> KvView:
        """The final positions of some layers, without a copy."""
        half = self.layout.num_kv_heads
        pairs = {at: (self._layers[at][:half], self._layers[at][half:]) for at in layers}
        return KvView(self.count, pairs)
