"""The operators of `layers.py` between products, on a GPU."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.models.cuda.layers import add_norm, finish, place, read_states
from slipstream.models.torch.arrays import LARGEST, LEAST, Rows, new_rows

_LARGEST, _LEAST = tl.constexpr(LARGEST), tl.constexpr(LEAST)


def launch(kernel: Any, grid: tuple[int, ...], query: Tensor, *given: Any, **sizes: Any) -> None:
    """Launch a kernel on the device of its first argument. Sums of products are fused, as by
    default until Triton 3.9, unless `sizes` say otherwise."""
    with torch.cuda.device_of(query):
        kernel[grid](query, *given, **{"enable_fp_fusion": True, **sizes})


def warps_for(width: int) -> int:
    """Return the warps of a program for rows so wide: a thread has up to 16 numbers of 8,192."""
    return min(max(width // 512, 4), 16)


@triton.jit
def scale_of(most, scales, row):
    """The scale of a row in 8-bit floats by its largest number, which is stored."""
    scale = tl.maximum(most, _LEAST) / _LARGEST
    tl.store(scales + row, scale)
    return scale


@triton.jit
def _add_norm(
    x, more, weight, total, out, scales, eps, size,
    WIDTH: tl.constexpr, ADDS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """The sum of a row and the `ADDS` that come to it, rounded, and the norm of that."""
    inner = tl.arange(0, WIDTH)
    mask, place = inner < size, tl.program_id(0).to(tl.int64) * size + inner
    own = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(ADDS):
        later = more + tl.num_programs(0).to(tl.int64) * part * size
        own += tl.load(later + place, mask=mask, other=0.0)
    own = own.to(x.dtype.element_ty)
    tl.store(total + place, own, mask=mask)
    own = own.to(tl.float32)
    own *= tl.rsqrt(tl.sum(own * own, 0) / size + eps)
    own *= tl.load(weight + inner, mask=mask, other=0.0)
    if ROUNDS:
        own /= scale_of(tl.max(tl.abs(own), 0), scales, tl.program_id(0))
    tl.store(out + place, own.to(out.dtype.element_ty), mask=mask)


@triton.jit
def turned_heads(
    query, cos, sin, norm, eps, place, row, is_used, size, turned,
    WIDTH: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """Query heads [n, WIDTH] at their places, of rows [n]: normed, rotated, and rounded."""
    inner = tl.arange(0, WIDTH)
    half = turned // 2
    far = tl.where(inner < half, inner + half, tl.where(inner < turned, inner - half, inner))
    mask, first = is_used[:, None] & (inner < size)[None, :], place.to(tl.int64)[:, None] * size
    own = tl.load(query + first + inner[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(query + first + far[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORMS:
        scale = tl.rsqrt(tl.sum(own * own, 1) / size + eps)[:, None]
        own *= scale * tl.load(norm + inner, mask=inner < size, other=0.0)[None, :]
        other *= scale * tl.load(norm + far, mask=inner < size, other=0.0)[None, :]
    angle, is_turned = row[:, None] * turned + inner[None, :], mask & (inner < turned)[None, :]
    other = tl.where((inner < half)[None, :], -other, other)
    own *= tl.load(cos + angle, mask=is_turned, other=1.0)
    own += other * tl.load(sin + angle, mask=is_turned, other=0.0)
    return own.to(query.dtype.element_ty)


@triton.jit
def _place(
    qkv, layer, slots, cos, sin, query_norm, key_norm, out, eps, num_keys, num_slots, size, turned,
    WIDTH: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """One head of a token: a query or a key is rotated; keys and values go to their slot."""
    row, head, num = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    num_heads, place = num - 2 * num_keys, row * num + head + tl.zeros([1], tl.int64)
    inner = tl.arange(0, WIDTH)[None, :]
    if head < num - num_keys:
        weight = query_norm if head < num_heads else key_norm
        given = (place, row + 0 * place, place >= 0, size, turned)
        own = turned_heads(qkv, cos, sin, weight, eps, *given, WIDTH, NORMS)
    else:
        own = tl.load(qkv + place[:, None] * size + inner, mask=inner < size, other=0.0)
    if head < num_heads:
        into = out + (row.to(tl.int64) * num_heads + head) * size
    else:
        slot = tl.load(slots + row)
        into = layer + ((head - num_heads).to(tl.int64) * num_slots + slot) * size
    tl.store(into + inner, own, mask=inner < size)


@triton.jit
def _read_states(others, slots, out, num_sessions, half, WIDTH: tl.constexpr):
    """Half of a token's hidden state of one layer."""
    row, layer, side = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    session = row * num_sessions // tl.num_programs(0)
    place = others + 2 * (layer * num_sessions + session)
    address, num_slots, slot = tl.load(place), tl.load(place + 1), tl.load(slots + row)
    inner = tl.arange(0, WIDTH)
    is_there = inner < tl.where((slot >= 0) & (num_slots > 0), half, 0)
    buffer = address.to(tl.pointer_type(out.dtype.element_ty)) + (side * num_slots + slot) * half
    own = tl.load(buffer + inner, mask=is_there, other=0.0)
    into = out + ((row.to(tl.int64) * tl.num_programs(1) + layer) * 2 + side) * half
    tl.store(into + inner, own, mask=inner < half)


@triton.jit
def _numbers(x, row, inner, size, GATES: tl.constexpr):
    """Some of a row: as it is, or of silu(a) * b."""
    mask = inner < size
    if not GATES:
        return tl.load(x + row * size + inner, mask=mask, other=0.0).to(tl.float32)
    first = tl.load(x + 2 * row * size + inner, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + (2 * row + 1) * size + inner, mask=mask, other=0.0)
    return first * tl.sigmoid(first) * second


@triton.jit
def _finish(
    x, out, scales, size, WIDTH: tl.constexpr, GATES: tl.constexpr, ROUNDS: tl.constexpr
):  # fmt: skip
    """A part of a row, or of silu(a) * b; a whole one in 8-bit floats, and its scale."""
    row, scale = tl.program_id(0).to(tl.int64), 1.0
    if ROUNDS:
        most = 0.0
        for start in range(0, size, WIDTH):
            own = _numbers(x, row, start + tl.arange(0, WIDTH), size, GATES)
            most = tl.maximum(most, tl.max(tl.abs(own), 0))
        scale = scale_of(most, scales, row)
    for start in range(tl.program_id(1) * WIDTH, size, tl.num_programs(1) * WIDTH):
        inner = start + tl.arange(0, WIDTH)
        own = _numbers(x, row, inner, size, GATES) / scale
        tl.store(out + row * size + inner, own.to(out.dtype.element_ty), mask=inner < size)


@add_norm.register_kernel("cuda")
def add_norm_rows(x: Tensor, more: Tensor, weight: Tensor, eps: float, rounds: bool) -> Rows:
    """See `add_norm`."""
    num_rows, size = x.shape
    width, adds = triton.next_power_of_2(size), len(more) // max(num_rows, 1)
    total, found = torch.empty_like(x), new_rows(x, size, rounds)
    given = (more if adds else x, weight, total, found[0], found[-1], eps, size)
    sizes = {"WIDTH": width, "ADDS": adds, "ROUNDS": rounds, "num_warps": warps_for(width)}
    launch(_add_norm, (num_rows,), x, *given, **sizes)
    return [total, *found]


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


@read_states.register_kernel("cuda")
def read_halves(like: Tensor, others: Tensor, slots: Tensor, size: int) -> Tensor:
    """See `read_states`."""
    num_layers, num_sessions, _ = others.shape
    out, half = like.new_empty(len(slots), num_layers * size), size // 2
    given = (others.contiguous(), slots.contiguous(), out, num_sessions, half)
    grid = (len(slots), num_layers, 2)
    launch(_read_states, grid, *given, WIDTH=triton.next_power_of_2(half))
    return out


@finish.register_kernel("cuda")
def finish_rows(x: Tensor, gates: bool, rounds: bool) -> Rows:
    """See `finish`."""
    size = x.shape[1] // (1 + gates)
    found = new_rows(x, size, rounds)
    width = min(triton.next_power_of_2(size), 8192) if rounds else 1024
    grid = (len(x), 1 if rounds else triton.cdiv(size, width))
    sizes = {"WIDTH": width, "GATES": gates, "ROUNDS": rounds, "num_warps": warps_for(width)}
    launch(_finish, grid, x.contiguous(), found[0], found[-1], size, **sizes)
    return found
