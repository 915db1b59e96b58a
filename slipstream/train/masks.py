"""Masks of the keys that a draft reads of its target in training: blocks of lagging keys, lags.

GliDe with a CaPE, section 4.1 (block-wise cross mask), with a block length and a grid offset of
each document's own.
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
        """Return those of every `stride`-th document from `start` on."""
        return Blocks(self.lengths[start::stride], self.offsets[start::stride])

    def to(self, device: torch.device) -> "Blocks":
        """Return the same on `device`."""
        return Blocks(self.lengths.to(device), self.offsets.to(device))

    def numbers(self, length: int) -> Tensor:
        """Return the number of the block that each of `length` positions lies in, [B, T]."""
        positions = torch.arange(length, device=self.offsets.device)
        return (positions + self.offsets[:, None]) // self.lengths[:, None]


def draw_blocks(count: int, settings: LossSettings, generator: torch.Generator) -> Blocks:
    """Return a block length and an offset below it for each of `count` documents."""
    low, high = settings.block_min, settings.block_max + 1
    lengths = torch.randint(low, high, (count,), generator=generator)
    return Blocks(lengths, (torch.rand(count, generator=generator) * lengths).long())


def block_mask(length: int, blocks: Blocks, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the cross mask [B, 1, T, T], 0 where query j may read key k, else -inf.

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
    """Return the cross mask [1, 1, T, T] without the newest `lag` keys before each query.

    The first rows, which would see nothing, see all positions before their own.
    """
    positions = torch.arange(length, device=device)
    return _additive((positions[None, :] < positions[:, None] - lag)[None], dtype)[:, None]


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where allowed [B, T, T], else -inf; empty rows read what came before them."""
    positions = torch.arange(allowed.shape[-1], device=allowed.device)
    before = positions[None, :] < positions[:, None]
    before[0, 0] = True
    allowed = torch.where(allowed.any(-1, keepdim=True), allowed, before)
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill_(~allowed, float("-inf"))
