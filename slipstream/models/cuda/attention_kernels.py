"""Attention over pages on a GPU.

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

from slipstream.models.cuda.kernels import launch, scale_of, turned_heads, warps_for
from slipstream.models.cuda.layers import attend_others
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.torch.arrays import Rows, new_rows
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
def _begun(
    of_query, layer, num_slots, session, size,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, OTHERS: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """Query heads [n, WIDTH], and the keys and values of their head in the buffer that they see: a
    session's by its place in `others`, else the layer's."""
    query, rotary, place, row, is_used = of_query
    if OTHERS:
        cos, sin, norm, eps, turned = rotary
        address, num_slots = tl.load(layer + 2 * session), tl.load(layer + 2 * session + 1)
        buffer = tl.multiple_of(address.to(tl.pointer_type(query.dtype.element_ty)), 16)
        given = (cos, sin, norm, eps, place, row, is_used, size, turned)
        q = turned_heads(query, *given, WIDTH, NORMS)
    else:
        buffer = layer
        q = _rows(query, place, is_used, size, WIDTH, False)
    keys = buffer + tl.program_id(1).to(tl.int64) * num_slots * size
    values = keys + tl.num_programs(1).to(tl.int64) * num_slots * size
    return q.to(tl.float32) if WIDE else q, keys, values


@triton.jit
def _attend_spans(
    query, layer, tables, tiles, counts, seen, starts, paths, cos, sin, norm, sums, peaks, totals,
    scale, eps, num_pages, num_slots, size, turned,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr, SPANS: tl.constexpr,
    WIDE: tl.constexpr, OTHERS: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """One span of the columns of a tile's tokens, for the query heads of one key head."""
    tile, head, number = tl.program_id(0) * 3, tl.program_id(1), tl.program_id(2)
    num_heads, first, num = tl.num_programs(1), tl.load(tiles + tile), tl.load(tiles + tile + 1)
    session, of = tl.load(tiles + tile + 2), tl.arange(0, PLACES) // GROUP
    given = (tables + session * num_pages, paths, starts, seen, counts)
    row = first + tl.where(of < num, of, 0)
    low, high = _span(tl.where(of < num, tl.load(counts + row), 0), number, SPANS)
    is_used, out = low < high, (row * num_heads + head) * GROUP + tl.arange(0, PLACES) % GROUP
    begin, end = tl.min(tl.where(is_used, low, 1 << 30), 0), tl.max(tl.where(is_used, high, 0), 0)
    of_query = (query, (cos, sin, norm, eps, turned), out, row, is_used)
    q, keys, values = _begun(of_query, layer, num_slots, session, size, WIDTH, WIDE, OTHERS, NORMS)
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
    index, inner = out * SPANS + number, tl.arange(0, WIDTH)[None, :]
    tl.store(peaks + index, peak, mask=is_used)
    tl.store(totals + index, total, mask=is_used)
    into = sums + index.to(tl.int64)[:, None] * size + inner
    tl.store(into, summed, mask=is_used[:, None] & (inner < size))


@triton.jit
def _add_spans(
    sums, peaks, totals, counts, out, scales, num_heads, size,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SPANS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """The attention of query heads of a token, by their spans; all heads of one that is rounded."""
    row, head = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    place = row * num_heads + tl.minimum(head, num_heads - 1)  # more heads are the last one again
    number, inner = tl.arange(0, SPANS)[None, :], tl.arange(0, WIDTH)[None, :]
    count, first = tl.load(counts + row), place * SPANS
    low, high = _span(count, number, SPANS)
    top = tl.load(peaks + first[:, None] + number, mask=low < high, other=float("-inf"))
    top, total = tl.max(top, 1), tl.zeros([HEADS], tl.float32)
    mean = tl.zeros([HEADS, WIDTH], tl.float32)
    for span in tl.static_range(SPANS):
        low, high = _span(count, span, SPANS)
        part, is_there = first + span, low + 0 * place < high
        peak = tl.load(peaks + part, mask=is_there, other=0.0)
        share = tl.where(is_there, tl.exp(peak - top), 0.0)
        total += share * tl.load(totals + part, mask=is_there, other=0.0)
        mean += share[:, None] * _rows(sums, part, is_there, size, WIDTH, True)
    mean = tl.where((total > 0)[:, None], mean / total[:, None], 0.0)
    if ROUNDS:
        mean /= scale_of(tl.max(tl.max(tl.abs(mean), 1), 0), scales, row)
    into = out + place.to(tl.int64)[:, None] * size + inner
    tl.store(into, mean.to(out.dtype.element_ty), mask=inner < size)


@attend.register_kernel("cuda")
def attend_spans(
    query: Tensor, layer: Tensor, tokens: list[Tensor], scale: float, rounds: bool
) -> Rows:
    """See `attend`; on another device, where Triton interprets kernels, products are in float32."""
    turns = (query, query, None, 0.0, scale, len(layer) // 2)
    return _attended(query, layer, tokens, turns, rounds)


@attend_others.register_kernel("cuda")
def attend_other_spans(
    query: Tensor, turns: list[Tensor], eps: float, tokens: list[Tensor], num_kv: int, rounds: bool
) -> Rows:
    """See `attend_others`."""
    (cos, sin, *norms), (others, *seen) = turns, tokens
    norm, scale = norms[0] if norms else None, query.shape[2] ** -0.5
    given = (cos.contiguous(), sin.contiguous(), norm, eps, scale, num_kv)
    return _attended(query, others, seen, given, rounds)


def _attended(query: Tensor, layer: Tensor, tokens: list[Tensor], turns: Any, rounds: bool) -> Rows:
    """Launch both kernels; `layer` are buffers of others where it has two dimensions."""
    (num_rows, num_heads, size), (cos, sin, norm, eps, scale, num_kv) = query.shape, turns
    given, query = [own.contiguous() for own in tokens], query.contiguous()
    tables, tiles, counts, *_ = given
    sums = query.new_empty(num_rows, num_heads, SPANS, size, dtype=torch.float32)
    peaks, totals = sums.new_empty(2, num_rows, num_heads, SPANS)
    group, is_wide = num_heads // num_kv, query.dtype == torch.float32 or not query.is_cuda
    width, has_others = max(triton.next_power_of_2(size), 16), layer.dim() == 2
    launch(
        _attend_spans, (len(tiles), num_kv, SPANS),
        query, layer, *given, cos, sin, cos if norm is None else norm, sums, peaks, totals,
        scale, eps, tables.shape[1], layer.shape[1], size, cos.shape[1],
        GROUP=group, WIDTH=width, PLACES=num_places(group), SPANS=SPANS, WIDE=is_wide,
        OTHERS=has_others, NORMS=norm is not None,
    )  # fmt: skip
    out = new_rows(query, num_heads * size, rounds)
    heads = triton.next_power_of_2(num_heads if rounds else min(num_heads, 4))
    own = (sums, peaks, totals, counts, out[0], out[-1], num_heads, size)
    sizes = {"HEADS": heads, "WIDTH": width, "SPANS": SPANS, "ROUNDS": rounds}
    grid, warps = (num_rows, triton.cdiv(num_heads, heads)), warps_for(heads * width)
    launch(_add_spans, grid, *own, **sizes, num_warps=warps)
    return out
