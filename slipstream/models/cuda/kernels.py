"""Kernels of a GPU between products: attention over pages, and the operators of `layers.py`.

Attention of trees is in place, and gives a token the same bits in any company.
A key's column is its position: on the session's pages, or behind them the slot of an ancestor. A
token's columns are cut into `SPANS` of whole blocks by its own position alone, and what the spans
give is summed in their order: nothing about a token depends on its batch, its slot, or its place in
a tree. (Spans: Flash-Decoding, 2023. Ancestors: tree attention of SpecInfer, 2024, section 4.2.)
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.models.cuda.layers import add_norm, gate, place
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.torch.paged import SPANS, attend, num_places

_PAGE, _BLOCK = tl.constexpr(BLOCK_SIZE), tl.constexpr(64)
"""Columns of a page, and those that are weighed together."""


@triton.jit
def _span(count, number, SPANS: tl.constexpr):
    """First and last column of a span, for tokens that see `count` columns."""
    length = tl.cdiv(tl.cdiv(count, _BLOCK), SPANS) * _BLOCK
    return number * length, tl.minimum((number + 1) * length, count)


@triton.jit
def _rows(buffer, index, is_there, size, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Rows [n, WIDTH] of a buffer [.., size], zeros where none is there."""
    inner = tl.arange(0, WIDTH)
    mask = is_there[:, None] & (inner < size)[None, :]
    rows = tl.load(
        buffer + index.to(tl.int64)[:, None] * size + inner[None, :], mask=mask, other=0.0
    )
    return rows.to(tl.float32) if WIDE else rows


@triton.jit
def _seen_rows(buffer, given, row, column, size, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Keys or values [n, WIDTH] of some columns of a token, on pages or at slots of its path."""
    table, paths, starts, seen, counts = given
    count, num_paged = tl.load(counts + row), tl.load(seen + row)
    page = tl.load(table + column // _PAGE, mask=column < num_paged, other=0)
    is_path = (column >= num_paged) & (column < count)
    other = tl.load(paths + tl.load(starts + row) + column - num_paged, mask=is_path, other=0)
    slot = tl.where(column < num_paged, page * _PAGE + column % _PAGE, other)
    return _rows(buffer, slot, column < count, size, WIDTH, WIDE)


@triton.jit
def _weights(score, peak):
    """Weights by scores, what is kept of sums by the peak before, and the new peak."""
    top = tl.maximum(peak, tl.max(score, 1))
    base = tl.where(top == float("-inf"), 0.0, top)
    return tl.exp(score - base[:, None]), tl.exp(peak - base), top


@triton.jit
def _store_span(
    sums, peaks, totals, index, is_used, summed, peak, total, size, WIDTH: tl.constexpr
):  # fmt: skip
    """Store what a span gives for each place in use."""
    inner = tl.arange(0, WIDTH)
    tl.store(peaks + index, peak, mask=is_used)
    tl.store(totals + index, total, mask=is_used)
    mask = is_used[:, None] & (inner < size)[None, :]
    tl.store(sums + index.to(tl.int64)[:, None] * size + inner[None, :], summed, mask=mask)


@triton.jit
def _attend_spans(
    query, layer, tables, tiles, counts, seen, starts, paths, sums, peaks, totals,
    scale, num_pages, num_slots, size,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr, SPANS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One span of the columns of a tile's tokens, for the query heads of one key head."""
    tile, head, number = tl.program_id(0) * 3, tl.program_id(1), tl.program_id(2)
    num_heads, first, num = tl.num_programs(1), tl.load(tiles + tile), tl.load(tiles + tile + 1)
    table, of = tables + tl.load(tiles + tile + 2) * num_pages, tl.arange(0, PLACES) // GROUP
    given = (table, paths, starts, seen, counts)
    row = first + tl.where(of < num, of, 0)
    low, high = _span(tl.where(of < num, tl.load(counts + row), 0), number, SPANS)
    is_used = low < high
    begin, end = tl.min(tl.where(is_used, low, 1 << 30), 0), tl.max(tl.where(is_used, high, 0), 0)
    keys = layer + head.to(tl.int64) * num_slots * size
    values = keys + num_heads.to(tl.int64) * num_slots * size
    out = (row * num_heads + head) * GROUP + tl.arange(0, PLACES) % GROUP
    q = _rows(query, out, is_used, size, WIDTH, WIDE)
    peak, total = tl.full([PLACES], float("-inf"), tl.float32), tl.zeros([PLACES], tl.float32)
    summed = tl.zeros([PLACES, WIDTH], tl.float32)
    for start in range(begin, end, _BLOCK):
        column = start + tl.arange(0, _BLOCK)
        # Tokens of a tile share their keys up to where the first of them leaves the pages.
        turns = tl.where(tl.min(tl.load(seen + row), 0) < start + _BLOCK, num, 1)
        score, added = tl.zeros([PLACES, _BLOCK], tl.float32), tl.zeros([PLACES, WIDTH], tl.float32)
        for turn in range(0, turns):
            k = _seen_rows(keys, given, first + turn, column, size, WIDTH, WIDE)
            own = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            score = tl.where(((of == turn) | (turns == 1))[:, None], own, score)
        is_seen = (column[None, :] >= low[:, None]) & (column[None, :] < high[:, None])
        weight, kept, peak = _weights(tl.where(is_seen, score, float("-inf")), peak)
        for turn in range(0, turns):
            v = _seen_rows(values, given, first + turn, column, size, WIDTH, WIDE)
            own = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            added = tl.where(((of == turn) | (turns == 1))[:, None], own, added)
        total, summed = total * kept + tl.sum(weight, 1), summed * kept[:, None] + added
    out = out * SPANS + number
    _store_span(sums, peaks, totals, out, is_used, summed, peak, total, size, WIDTH)


@triton.jit
def _add_spans(
    sums, peaks, totals, counts, out, size,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """The attention of one query head of a token, by its spans."""
    head = tl.program_id(0)
    number, inner = tl.arange(0, SPANS), tl.arange(0, WIDTH)
    low, high = _span(tl.load(counts + head // HEADS), number, SPANS)
    is_there, part = low < high, head * SPANS + number
    peak = tl.load(peaks + part, mask=is_there, other=float("-inf"))
    share = tl.where(is_there, tl.exp(peak - tl.max(peak, 0)), 0.0)
    total = tl.sum(tl.load(totals + part, mask=is_there, other=0.0) * share, 0)
    summed = _rows(sums, part, is_there, size, WIDTH, True)
    mean = tl.where(total > 0, tl.sum(summed * share[:, None], 0) / total, 0.0)
    tl.store(out + head.to(tl.int64) * size + inner, mean, mask=inner < size)


@attend.register_kernel("cuda")
def attend_spans(query: Tensor, layer: Tensor, tokens: list[Tensor], scale: float) -> Tensor:
    """See `attend`; on another device, where Triton interprets kernels, products are in float32."""
    tables, tiles, counts, seen, starts, paths = (own.contiguous() for own in tokens)
    num_rows, num_heads, size = query.shape
    num_keys = len(layer) // 2
    query = query.contiguous()
    sums = query.new_empty(num_rows, num_heads, SPANS, size, dtype=torch.float32)
    peaks, totals = sums.new_empty(2, num_rows, num_heads, SPANS)
    out = torch.empty_like(query)
    group, is_wide = num_heads // num_keys, query.dtype == torch.float32 or not query.is_cuda
    width = max(triton.next_power_of_2(size), 16)
    launch(
        _attend_spans, (len(tiles), num_keys, SPANS),
        query, layer, tables, tiles, counts, seen, starts, paths, sums, peaks, totals,
        scale, tables.shape[1], layer.shape[1], size,
        GROUP=group, WIDTH=width, PLACES=num_places(group), SPANS=SPANS, WIDE=is_wide,
    )  # fmt: skip
    given = (sums, peaks, totals, counts, out, size)
    launch(_add_spans, (num_rows * num_heads,), *given, HEADS=num_heads, WIDTH=width, SPANS=SPANS)
    return out.flatten(1)


@triton.jit
def _add_norm(x, more, weight, total, out, eps, size, WIDTH: tl.constexpr, ADDS: tl.constexpr):
    """The sum of a row and what comes to it, rounded, and the norm of that."""
    inner = tl.arange(0, WIDTH)
    mask, place = inner < size, tl.program_id(0).to(tl.int64) * size + inner
    own = tl.load(x + place, mask=mask, other=0.0)
    if ADDS:
        own = (own.to(tl.float32) + tl.load(more + place, mask=mask, other=0.0)).to(
            x.dtype.element_ty
        )
    tl.store(total + place, own, mask=mask)
    own = own.to(tl.float32)
    scale = tl.rsqrt(tl.sum(own * own, 0) / size + eps)
    tl.store(out + place, own * scale * tl.load(weight + inner, mask=mask, other=0.0), mask=mask)


@triton.jit
def _place(
    qkv, layer, slots, cos, sin, query_norm, key_norm, out, eps, num_keys, num_slots, size, turned,
    WIDTH: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """One head of a token: a query or a key is rotated; keys and values go to their slot."""
    row, head, num = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    num_heads = num - 2 * num_keys
    inner = tl.arange(0, WIDTH)
    mask = inner < size
    half, is_turned = turned // 2, mask & (inner < turned)
    other = tl.where(inner < half, inner + half, tl.where(is_turned, inner - half, inner))
    given = qkv + (row.to(tl.int64) * num + head) * size
    own = tl.load(given + inner, mask=mask, other=0.0).to(tl.float32)
    far = tl.load(given + other, mask=mask, other=0.0).to(tl.float32)
    if head < num - num_keys:
        if NORMS:
            weight = query_norm if head < num_heads else key_norm
            scale = tl.rsqrt(tl.sum(own * own, 0) / size + eps)
            own = own * scale * tl.load(weight + inner, mask=mask, other=0.0)
            far = far * scale * tl.load(weight + other, mask=mask, other=0.0)
        angle = row * turned + inner
        own = own * tl.load(cos + angle, mask=is_turned, other=1.0)
        own += tl.where(inner < half, -far, far) * tl.load(sin + angle, mask=is_turned, other=0.0)
    if head < num_heads:
        tl.store(out + (row.to(tl.int64) * num_heads + head) * size + inner, own, mask=mask)
    else:
        slot = tl.load(slots + row)
        into = layer + ((head - num_heads).to(tl.int64) * num_slots + slot) * size
        tl.store(into + inner, own, mask=mask)


@triton.jit
def _gate(x, out, size, WIDTH: tl.constexpr):
    """A part of a row of silu(a) * b."""
    row, inner = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = inner < size
    first = tl.load(x + 2 * row * size + inner, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + (2 * row + 1) * size + inner, mask=mask, other=0.0)
    tl.store(out + row * size + inner, first * tl.sigmoid(first) * second, mask=mask)


@add_norm.register_kernel("cuda")
def add_norm_rows(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `add_norm`."""
    num_rows, size = x.shape
    width, adds = triton.next_power_of_2(size), len(more) > 0
    total, out = torch.empty_like(x), torch.empty_like(x)
    given = (x, more if adds else x, weight, total, out)
    launch(_add_norm, (num_rows,), *given, eps, size, WIDTH=width, ADDS=adds)
    return total, out


@place.register_kernel("cuda")
def place_heads(
    qkv: Tensor, layer: Tensor, places: list[Tensor], norms: list[Tensor], eps: float
) -> Tensor:
    """See `place`."""
    (cos, sin, slots), (num_layer, num_slots, size) = places, layer.shape
    num = qkv.shape[1] // size
    out = qkv.new_empty(len(qkv), num - num_layer, size)
    weights = (*norms, *norms) or (cos, sin)
    given = (qkv, layer, slots, cos.contiguous(), sin.contiguous(), *weights[:2], out)
    sizes = (num_layer // 2, num_slots, size, cos.shape[1])
    width, has_norms = triton.next_power_of_2(size), bool(norms)
    launch(_place, (len(qkv), num), *given, eps, *sizes, WIDTH=width, NORMS=has_norms)
    return out


@gate.register_kernel("cuda")
def gate_rows(x: Tensor) -> Tensor:
    """See `gate`."""
    size = x.shape[1] // 2
    out = x.new_empty(len(x), size)
    launch(_gate, (len(x), triton.cdiv(size, 1024)), x, out, size, WIDTH=1024)
    return out


def launch(kernel: Any, grid: tuple[int, ...], query: Tensor, *given: Any, **sizes: Any) -> None:
    """Launch a kernel on the device of its first argument. Sums of products are fused, as by
    default until Triton 3.9, unless `sizes` say otherwise."""
    with torch.cuda.device_of(query):
        kernel[grid](query, *given, **{"enable_fp_fusion": True, **sizes})
