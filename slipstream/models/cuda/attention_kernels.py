"""The attention kernel over gathered pages: torch's own choice, or one that keeps bits.

For `invariant` numerics a token must have the same bits in any group, place and width, which is
tried on the device. FlexAttention over the pool in place was left out: its mask has a row of the
whole pool's slots for each token, made anew in every forward.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from slipstream.core.errors import ModelError
from slipstream.models.cuda.steady import PAIRED, cancelling_keys
from slipstream.models.dtypes import CPU
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout
from slipstream.models.torch.arrays import torch_dtype
from slipstream.models.torch.packing import ForwardShape
from slipstream.models.torch.paged import Kernel, PagedAttention, PagedTokens, attend_paged, unpack

_NUM_PAGES = 24
_ALONE = ForwardShape(rows=1, segments=1, segment_size=1, width=256, path=0, draws=0)
_COMPANIES = (
    ForwardShape(rows=2, segments=1, segment_size=2, width=256, path=0, draws=0),
    ForwardShape(rows=4, segments=1, segment_size=4, width=256, path=0, draws=0),
    ForwardShape(rows=8, segments=1, segment_size=8, width=384, path=0, draws=0),
    ForwardShape(rows=16, segments=1, segment_size=16, width=256, path=0, draws=0),
    ForwardShape(rows=64, segments=4, segment_size=16, width=1024, path=0, draws=0),
)


def choose_kernel(layout: KvLayout, group: int) -> Kernel:
    """Return the kernel that keeps a token's bits, for a model's shapes on its device; `group`
    query heads share a key head. Raises `ModelError` where none does."""
    if layout.device == CPU:  # where captured forwards are only tried
        return attend_paged
    trial = Trial(layout, group)
    for kernel in _STEADY:
        if trial.is_steady(kernel):
            return kernel
    raise ModelError(
        f"no attention kernel of {layout.device} gives a row the same bits in every batch:"
        " use fast numerics"
    )


class Trial:
    """Random keys and queries of a model's shapes, to try kernels on."""

    def __init__(self, layout: KvLayout, group: int) -> None:
        self._layout = layout
        self._group = group
        self._noise = torch.Generator().manual_seed(0)
        self._layer = self._paired(_NUM_PAGES * BLOCK_SIZE)
        self._query = self._random(128, layout.num_kv_heads * group, layout.head_dim)

    @torch.inference_mode()
    def is_steady(self, kernel: Kernel) -> bool:
        """Return whether tokens have the same bits alone and in a batch; False for a failure."""
        try:
            return all(self._keeps_bits(kernel, shape) for shape in _COMPANIES)
        except Exception:  # a kernel that this device, build or shape does not have
            return False

    def _keeps_bits(self, kernel: Kernel, shape: ForwardShape) -> bool:
        seen = [BLOCK_SIZE + PAIRED * (row % 4) for row in range(shape.rows)]
        alone = [self._attend(kernel, _ALONE, [count], row) for row, count in enumerate(seen)]
        return torch.equal(self._attend(kernel, shape, seen, 0), torch.cat(alone))

    def _attend(
        self, kernel: Kernel, shape: ForwardShape, seen: Sequence[int], first: int
    ) -> Tensor:
        """Attend with the queries from `first` on, to so many keys each."""
        query = self._query[first : first + shape.rows]
        return kernel(query, self._layer, self._batch(kernel, shape, seen, first), 0.1)

    def _batch(
        self, kernel: Kernel, shape: ForwardShape, seen: Sequence[int], first: int
    ) -> PagedTokens:
        rows = range(shape.rows)
        own = [(_NUM_PAGES - 1) * BLOCK_SIZE + first + row for row in rows]
        pages = [page % (_NUM_PAGES - 1) for page in range(shape.width // BLOCK_SIZE)]
        starts = [0] * shape.segments
        parts = ([0] * shape.rows, seen, own, rows, rows, rows, pages * shape.segments, starts)
        values = torch.tensor([value for part in parts for value in part])
        attention = PagedAttention(self._group, torch_dtype(self._layout.dtype), kernel)
        return unpack(values.to(self._layout.device), shape, attention).segments

    def _paired(self, num_slots: int) -> Tensor:
        """Keys, then values [2 * kv_heads, slots, d]; the last page, of own ones, has values 0."""
        heads, dim = self._layout.num_kv_heads, self._layout.head_dim
        half = self._random(2, heads, num_slots // PAIRED, PAIRED // 2, dim)
        order = torch.randperm(PAIRED, generator=self._noise).to(half.device)
        keys, values = cancelling_keys(half, order)
        values[:, -BLOCK_SIZE:] = 0
        return torch.cat([keys, values])

    def _random(self, *size: int) -> Tensor:
        made = torch.randn(size, generator=self._noise)
        return made.to(device=self._layout.device, dtype=torch_dtype(self._layout.dtype))


def _by(backend: SDPBackend) -> Kernel:
    """Return PagedAttention over gathered pages, by one of torch's kernels."""

    def attend(query: Tensor, layer: Tensor, batch: PagedTokens, scale: float) -> Tensor:
        with sdpa_kernel(backend):
            return attend_paged(query, layer, batch, scale)

    return attend


_STEADY = (_by(SDPBackend.EFFICIENT_ATTENTION), _by(SDPBackend.MATH))
"""Kernels to try, the faster first. Not cuDNN's, which torch's own choice may be: in a model of 30
layers in bfloat16 on an H100, it gave rows of 3 and more in a batch other bits than alone."""
