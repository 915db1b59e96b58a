"""The operators of `layers.py` between products, on a GPU."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.models.cuda.layers import (
    LARGEST,
    LEAST,
    add_norm,
    gate,
    place,
    read_states,
    scaled_linear,
)


def launch(kernel: Any, grid: tuple[int, ...], query: Tensor, *given: Any, **sizes: Any) -> None:
    """Launch a kernel on the device of its first argument. Sums of products are fused, as by
    default until Triton 3.9, unless `sizes` say otherwise."""
    with torch.cuda.device_of(query):
        kernel[grid](query, *given, **{"enable_fp_fusion": True, **sizes})


@triton.jit
def _add_norm(x, more, weight, total, out, eps, size, WIDTH: tl.constexpr, ADDS: tl.constexpr):
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
    scale = tl.rsqrt(tl.sum(own * own, 0) / size + eps)
    tl.store(out + place, own * scale * tl.load(weight + inner, mask=mask, other=0.0), mask=mask)


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
def _gate(x, out, size, WIDTH: tl.constexpr):
    """A part of a row of silu(a) * b."""
    row, inner = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = inner < size
    first = tl.load(x + 2 * row * size + inner, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + (2 * row + 1) * size + inner, mask=mask, other=0.0)
    tl.store(out + row * size + inner, first * tl.sigmoid(first) * second, mask=mask)


@triton.jit
def _round(
    x, codes, scales, size, WIDTH: tl.constexpr, LEAST: tl.constexpr, LARGEST: tl.constexpr
):  # fmt: skip
    """A row in 8-bit floats, and its scale."""
    row, most = tl.program_id(0).to(tl.int64) * size, LEAST
    for start in range(0, size, WIDTH):
        inner = start + tl.arange(0, WIDTH)
        own = tl.load(x + row + inner, mask=inner < size, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.max(tl.abs(own), 0))
    scale = most / LARGEST
    tl.store(scales + tl.program_id(0), scale)
    for start in range(0, size, WIDTH):
        inner = start + tl.arange(0, WIDTH)
        own = tl.load(x + row + inner, mask=inner < size, other=0.0).to(tl.float32)
        tl.store(codes + row + inner, (own / scale).to(tl.float8e4nv), mask=inner < size)


@add_norm.register_kernel("cuda")
def add_norm_rows(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `add_norm`."""
    num_rows, size = x.shape
    width, adds = triton.next_power_of_2(size), len(more) // max(num_rows, 1)
    total, out = torch.empty_like(x), torch.empty_like(x)
    given = (x, more if adds else x, weight, total, out)
    num_warps = min(max(width // 512, 4), 16)  # a thread has up to 16 elements of 8,192
    launch(_add_norm, (num_rows,), *given, eps, size, WIDTH=width, ADDS=adds, num_warps=num_warps)
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


@read_states.register_kernel("cuda")
def read_halves(like: Tensor, others: Tensor, slots: Tensor, size: int) -> Tensor:
    """See `read_states`."""
    num_layers, num_sessions, _ = others.shape
    out, half = like.new_empty(len(slots), num_layers * size), size // 2
    given = (others.contiguous(), slots.contiguous(), out, num_sessions, half)
    grid = (len(slots), num_layers, 2)
    launch(_read_states, grid, *given, WIDTH=triton.next_power_of_2(half))
    return out


@gate.register_kernel("cuda")
def gate_rows(x: Tensor) -> Tensor:
    """See `gate`."""
    size = x.shape[1] // 2
    out = x.new_empty(len(x), size)
    launch(_gate, (len(x), triton.cdiv(size, 1024)), x, out, size, WIDTH=1024)
    return out


@scaled_linear.register_kernel("cuda")
def scaled_products(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """See `scaled_linear`."""
    x = x.contiguous()
    codes, own = torch.empty_like(x, dtype=weight.dtype), scales.new_empty(len(x), 1)
    sizes = {"WIDTH": 1024, "LEAST": LEAST, "LARGEST": LARGEST}
    launch(_round, (len(x),), x, codes, own, x.shape[1], **sizes)
    return torch._scaled_mm(codes, weight.t(), own, scales[None], bias, out_dtype=x.dtype)
