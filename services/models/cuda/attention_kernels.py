"""PagedAttention kernels over a pool in place, and the choice among them by measuring.

For `invariant` numerics only kernels count under which a token has the same bits in any group,
place and width; those are tried too. On a CPU there is nothing to choose. FlexAttention adds up a
row's keys in the order of their slots, so its bits depend on where they lie: `fast` numerics only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from slipstream.core.errors import ModelError
from slipstream.models.cuda.buckets import ForwardShape
from slipstream.models.kv.paged import Kernel, PagedAttention, PagedTokens, attend_paged, unpack
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout
from slipstream.models.numerics.invariance import PAIRED, cancelling_keys

_NUM_PAGES = 24
_NUM_CALLS = 10
_SHAPES = (
    ForwardShape(rows=16, segments=1, segment_size=16, width=1024, path=0, draws=0),
    ForwardShape(rows=64, segments=8, segment_size=8, width=1024, path=0, draws=0),
)
_ALONE = ForwardShape(rows=1, segments=1, segment_size=1, width=256, path=0, draws=0)
_COMPANIES = (
    ForwardShape(rows=2, segments=1, segment_size=2, width=256, path=0, draws=0),
    ForwardShape(rows=4, segments=1, segment_size=4, width=256, path=0, draws=0),
    ForwardShape(rows=8, segments=1, segment_size=8, width=384, path=0, draws=0),
    ForwardShape(rows=16, segments=1, segment_size=16, width=256, path=0, draws=0),
    ForwardShape(rows=64, segments=4, segment_size=16, width=1024, path=0, draws=0),
)
_FOUND_OUT = frozenset({"sdpa", "cudnn"})
"""Kernels that pass for steady: in a model of 30 layers in bfloat16 on an H100, rows of 3 and more
in a batch had other bits than alone under cuDNN, which torch's own choice may be."""
_SEEN = 200
_MAX_SHAPES = 6
"""Compiled forms of one kernel: torch gives up after eight, and then computes every score."""


def choose_kernel(layout: KvLayout, group: int, *, is_invariant: bool) -> Kernel:
    """Return the fastest kernel for a model's shapes on its device.

    Raises `ModelError` where invariant numerics are asked for and no kernel keeps a token's bits.
    """
    if layout.device.type != "cuda":
        return attend_paged
    trial = Trial(layout, group)
    candidates = dict(_CANDIDATES)
    if is_invariant:
        kernels = ((name, kernel) for name, kernel in candidates.items() if name not in _FOUND_OUT)
        candidates = {name: kernel for name, kernel in kernels if trial.steady(kernel)}
        if not candidates:
            raise ModelError(
                f"no attention kernel of {layout.device} gives a row the same bits in every batch:"
                " use fast numerics"
            )
    else:
        candidates["flex"] = FlexKernel(is_compiled=True)
    return fastest(candidates, trial.seconds)


def fastest(kernels: Mapping[str, Kernel], seconds: Callable[[Kernel], float]) -> Kernel:
    """Return the kernel that takes least, without those that fail. `ModelError` where all do."""
    best: tuple[float, Kernel] | None = None
    reasons = []
    for name, kernel in kernels.items():
        try:
            took = seconds(kernel)
        except Exception as error:  # a kernel that this device, build or shape does not have
            reasons.append(f"{name}: {(str(error) or repr(error)).splitlines()[0]}")
            continue
        if best is None or took < best[0]:
            best = took, kernel
    if best is None:
        raise ModelError(f"no attention kernel works ({'; '.join(reasons)})")
    return best[1]


class Trial:
    """Random keys and queries of a model's shapes, to try kernels on."""

    def __init__(self, layout: KvLayout, group: int) -> None:
        self._layout = layout
        self._group = group
        self._noise = torch.Generator().manual_seed(0)
        self._layer = self._paired(_NUM_PAGES * BLOCK_SIZE)
        self._query = self._random(128, layout.num_kv_heads * group, layout.head_dim)

    def steady(self, kernel: Kernel) -> bool:
        """Return whether tokens have the same bits alone and in a batch; False for a failure."""
        try:
            return all(self._keeps_bits(kernel, shape) for shape in _COMPANIES)
        except Exception:  # a kernel that this device, build or shape does not have
            return False

    def _keeps_bits(self, kernel: Kernel, shape: ForwardShape) -> bool:
        seen = [BLOCK_SIZE + PAIRED * (row % 4) for row in range(shape.rows)]
        alone = [self._run(kernel, _ALONE, [count], row) for row, count in enumerate(seen)]
        return torch.equal(self._run(kernel, shape, seen), torch.cat(alone))

    def seconds(self, kernel: Kernel) -> float:
        """Time of a call, over the shapes tried; the device is waited for."""
        total = 0.0
        for shape in _SHAPES:
            self._run(kernel, shape)  # compiles, where it has to
            self._wait()
            began = time.perf_counter()
            for _ in range(_NUM_CALLS):
                self._run(kernel, shape)
            self._wait()
            total += time.perf_counter() - began
        return total / (_NUM_CALLS * len(_SHAPES))

    @torch.inference_mode()
    def _run(
        self, kernel: Kernel, shape: ForwardShape, seen: Sequence[int] | None = None, first: int = 0
    ) -> Tensor:
        """Attend with queries from `first` on, to so many keys each, 200 by default."""
        query = self._query[first : first + shape.rows]
        return kernel(query, self._layer, self._batch(kernel, shape, seen, first), 0.1)

    def _batch(
        self, kernel: Kernel, shape: ForwardShape, seen: Sequence[int] | None = None, first: int = 0
    ) -> PagedTokens:
        rows = range(shape.rows)
        own = [(_NUM_PAGES - 1) * BLOCK_SIZE + first + row for row in rows]
        pages = [page % (_NUM_PAGES - 1) for page in range(shape.width // BLOCK_SIZE)]
        parts: Sequence[Sequence[int]] = (
            [0] * shape.rows,
            seen or [_SEEN] * shape.rows,
            own,
            rows,
            rows,
            rows,
            pages * shape.segments,
            [0] * shape.segments,
        )
        values = torch.tensor([value for part in parts for value in part])
        layout = self._layout
        attention = PagedAttention(self._group, layout.dtype, self._layer.shape[1], kernel)
        return unpack(values.to(layout.device), shape, attention).segments

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
        return made.to(device=self._layout.device, dtype=self._layout.dtype)

    def _wait(self) -> None:
        if self._layout.device.type == "cuda":
            torch.cuda.synchronize(self._layout.device)


def _only(backend: SDPBackend) -> Kernel:
    """PagedAttention over gathered pages, by one of torch's kernels."""

    def attend(query: Tensor, layer: Tensor, batch: PagedTokens, scale: float) -> Tensor:
        with sdpa_kernel(backend):
            return attend_paged(query, layer, batch, scale)

    return attend


_CANDIDATES: Mapping[str, Kernel] = {
    "sdpa": attend_paged,
    "efficient": _only(SDPBackend.EFFICIENT_ATTENTION),
    "cudnn": _only(SDPBackend.CUDNN_ATTENTION),
    "math": _only(SDPBackend.MATH),
}


class FlexKernel:
    """`paged.Kernel` by FlexAttention; compiled where `is_compiled`, else by torch's reference of
    it, which computes every score."""

    def __init__(self, *, is_compiled: bool) -> None:
        attend: Any = flex_attention
        self._is_compiled = is_compiled
        self._shapes: set[tuple[torch.Size, torch.Size]] = set()
        self._made: tuple[PagedTokens, BlockMask] | None = None
        self._attend = torch.compile(attend, dynamic=False) if is_compiled else attend

    def __call__(self, query: Tensor, layer: Tensor, batch: PagedTokens, scale: float) -> Tensor:
        """See `paged.attend_paged`, which takes shapes beyond those that can be compiled."""
        if self._is_compiled and not self._has_room((query.shape, layer.shape)):
            return attend_paged(query, layer, batch, scale)
        num_kv, (num_rows, num_heads, dim) = layer.shape[0] // 2, query.shape
        keys, values = layer.unsqueeze(0).split(num_kv, 1)
        out: Tensor = self._attend(
            query.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            block_mask=self._mask(batch),
            scale=scale,
            enable_gqa=num_heads > num_kv,
        )
        return out[0].transpose(0, 1).reshape(num_rows, num_heads * dim)

    def _has_room(self, shape: tuple[torch.Size, torch.Size]) -> bool:
        if shape not in self._shapes and len(self._shapes) < _MAX_SHAPES:
            self._shapes.add(shape)
        return shape in self._shapes

    def _mask(self, batch: PagedTokens) -> BlockMask:
        """Made once for all layers of a forward."""
        if self._made is None or self._made[0] is not batch:
            self._made = batch, block_mask(seen_slots(batch))
        return self._made[1]


def seen_slots(batch: PagedTokens) -> Tensor:
    """Return which slots of the pool each token sees, bool [R, num_slots]."""
    visible = batch.visible.flatten(0, 1)
    columns = batch.keys.view(batch.num_segments, 1, -1).expand_as(batch.visible).flatten(0, 1)
    # Added up, because a slot may stand in several columns, in one of them hidden.
    counts = torch.zeros(len(visible), batch.num_slots, dtype=torch.int32, device=visible.device)
    counts.scatter_add_(1, columns, visible.int())
    return counts.index_select(0, batch.places) > 0


def block_mask(seen: Tensor) -> BlockMask:
    """Return the mask of tokens that see [R, num_slots], with the pages that any token sees."""
    num_rows, num_slots = seen.shape
    blocks = -(-num_rows // BLOCK_SIZE)
    padded = seen.new_zeros(blocks * BLOCK_SIZE, num_slots)
    padded[:num_rows] = seen
    by_page = padded.view(blocks, BLOCK_SIZE, num_slots // BLOCK_SIZE, BLOCK_SIZE).any(3).any(1)
    order = by_page.int().sort(dim=1, descending=True, stable=True).indices.int()
    counts = by_page.sum(1).int()

    def sees(_b: Tensor, _h: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        return seen[row, slot]

    return BlockMask.from_kv_blocks(
        counts.view(1, 1, -1),
        order.view(1, 1, blocks, -1),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=sees,
        seq_lengths=(num_rows, num_slots),
    )
