"""Shape of keys and values, and the block in which they come. Knows no tensors' contents."""

from dataclasses import dataclass

import torch

KEY_BLOCK = 128
"""Key ranges are padded to a multiple of this, so a page of a cache is as long."""


def round_up(count: int, block: int) -> int:
    """The smallest multiple of `block` that is at least `count`."""
    return -(-count // block) * block


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of a model's cache: [2 * kv_heads, slots, head_dim] a layer, keys before values.

    A model that is split among ranks has `num_kv_heads` in all, and each rank an equal part.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    num_ranks: int = 1

    @property
    def num_own_heads(self) -> int:
        """Key heads of one rank."""
        return self.num_kv_heads // self.num_ranks

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes, on each rank."""
        return 2 * self.num_layers * self.num_own_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_per_page(self) -> int:
        """Bytes of a block of `KEY_BLOCK` tokens."""
        return KEY_BLOCK * self.bytes_per_token
