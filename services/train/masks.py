"""What a draft may see of its target in training: blocks of lagging keys, and plain lags.

GliDe with a CaPE, section 4.1 (block-wise cross mask), with a block length and a grid offset of
each document's own. Knows nothing of losses or models.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.train.config import LossSettings


@dataclass(frozen=True, slots=True)
class Blocks:
    """Grids of B documents: block lengths [B] and how far each grid is shifted [B], int64."""

    lengths: Tensor
    offsets: Tensor

    def part(self, start: int, stride: int) -> "Blocks":
        """Those of every `stride`-th document from `start` on."""
        return Blocks(self.lengths[start::stride], self.offsets[start::stride])

    def to(self, device: torch.device) -> "Blocks":
        """The same on `device`."""
        return Blocks(self.lengths.to(device), self.offsets.to(device))

    def places(self, length: int) -> Tensor:
        """Place of each of `length` positions within its block, [B, T], from 0."""
        return self._shifted(length) % self.lengths[:, None]

    def numbers(self, length: int) -> Tensor:
        """Number of the block that each of `length` positions lies in, [B, T]."""
        return self._shifted(length) // self.lengths[:, None]

    def _shifted(self, length: int) -> Tensor:
        return torch.arange(length, device=self.offsets.device)[None] + self.offsets[:, None]


def draw_blocks(count: int, settings: LossSettings, generator: torch.Generator) -> Blocks:
    """A block length and an offset below it for each of `count` documents."""
    low, high = settings.block_min, settings.block_max + 1
    lengths = torch.randint(low, high, (count,), generator=generator)
    return Blocks(lengths, (torch.rand(count, generator=generator) * lengths).long())


def block_mask(length: int, blocks: Blocks, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Cross mask [B, 1, T, T], 0 where query j may read key k, else -inf.

    j reads k iff k lies in an earlier block of its document. Rows with no earlier block read all
    positions before their own, and position 0 itself.
    """
    grid = blocks.numbers(length)
    return _additive(grid[:, None, :] < grid[:, :, None], dtype)[:, None]


def lag_mask(
    length: int,
    lag: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Cross mask [1, 1, T, T] in which each query misses the newest `lag` keys before it.

    The first rows, which would see nothing, see all positions before their own.
    """
    positions = torch.arange(length, device=device)
    return _additive((positions[None, :] < positions[:, None] - lag)[None], dtype)[:, None]


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed [B, T, T], else -inf; empty rows see what came before them."""
    positions = torch.arange(allowed.shape[-1], device=allowed.device)
    before = positions[None, :] < positions[:, None]
    before[0, 0] = True
    allowed = torch.where(allowed.any(-1, keepdim=True), allowed, before)
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill_(~allowed, float("-inf"))
