"""The keys that a chain's rows look back on, dense by session: `glide_packed.Seats` of a device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.glide_packed import Rotation
from slipstream.models.paged import attend_each
from slipstream.models.pool import KvPool


@dataclass(frozen=True, slots=True)
class ChainSeats:
    """Rows of a pass over dense keys: see `glide_packed.Seats`.

    `own` are the keys of each layer [B, 2 * kv_heads, W, hd], written at `columns` [B, N], and in
    the pool at `slots` [B * N] where there are such. `others` are the target's, `reads` [R, 1]
    which kept rows see any of them.
    """

    own: Sequence[Tensor]
    columns: Tensor
    store_in: tuple[KvPool, Tensor] | None
    own_mask: Tensor
    others: Sequence[Tensor]
    others_mask: Tensor
    reads: Tensor
    rotation: Rotation
    kept: Tensor | None = None

    @property
    def num_kept(self) -> int:
        """See `Seats`."""
        return self.columns.numel() if self.kept is None else len(self.kept)

    @property
    def is_reading(self) -> bool:
        """See `Seats`."""
        return True

    def kept_rotation(self) -> Rotation:
        """See `Seats`."""
        if self.kept is None:
            return self.rotation
        return Rotation(self.rotation.cos[self.kept], self.rotation.sin[self.kept])

    def store(self, index: int, keys: Tensor, values: Tensor) -> None:
        """See `Seats`."""
        fresh = torch.cat([keys, values])
        dense, (num, rows) = self.own[index], self.columns.shape
        by_session = fresh.view(len(fresh), num, rows, -1).transpose(0, 1)
        at = self.columns.view(num, 1, rows, 1).expand_as(by_session)
        dense.scatter_(2, at, by_session)
        if self.store_in is not None:
            pool, slots = self.store_in
            pool.layer(index).index_copy_(1, slots, fresh)

    def look_back(self, index: int, query: Tensor, num_kv_heads: int) -> Tensor:
        """See `Seats`."""
        return attend_each(query, self.own[index], self.own_mask)

    def look_across(self, index: int, query: Tensor, num_kv_heads: int) -> Tensor:
        """See `Seats`."""
        seen = attend_each(query, self.others[index], self.others_mask)
        return torch.where(self.reads, seen, 0.0)
