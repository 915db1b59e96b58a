"""One GliDe layer for inference: packed products, a cache of its own keys and values, few ops.

Computes what `glide.GlideLayer` computes, for a handful of rows. Knows nothing of sessions,
trees or vocabularies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.glide import GlideCrossAttention, GlideLayer, RmsNorm
from slipstream.models.glide_linear import DraftLinear


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary factors of R rows: cos [R, 1, rotary_dim], and sin with its first half negated, so
    that rotating is two products and a roll."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Where R new rows stand: their slots in the cache, rotary factors, and what they see.

    The last `num_kept` rows go on behind the self-attention's keys and values; `self_mask`
    [num_kept, S] and `cross_mask` [num_kept, count] are added to their scores, None where a row
    sees everything. target_kv: per target layer [1, kv_heads, count, head_dim] twice, () to skip.
    """

    start: int
    rotation: Rotation
    num_kept: int
    self_mask: Tensor | None
    target_kv: Sequence[tuple[Tensor, Tensor]]
    cross_mask: Tensor | None


class PackedNorm:
    """Root-mean-square norm by one fused kernel.

    The layer norm of (x, -x) has mean zero and the mean square of x as its variance; on a CPU it
    is one kernel where `F.rms_norm` is eight.
    """

    def __init__(self, norm: RmsNorm, dtype: torch.dtype) -> None:
        weight = norm.weight.detach().to(dtype)
        self._size, self._eps = len(weight), norm.eps
        self._shape = (2 * self._size,)
        self._weight = torch.cat((weight, torch.zeros_like(weight)))

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape."""
        both = torch.cat((x, -x), dim=-1)
        out = F.layer_norm(both, self._shape, self._weight, None, self._eps)
        return out[..., : self._size]


class PackedCross:
    """Cross-attention over one target layer."""

    def __init__(self, cross: GlideCrossAttention, dtype: torch.dtype) -> None:
        self._norm = PackedNorm(cross.norm, dtype)
        self._query = _packed([cross.q_proj], dtype)
        self._query_norm = None if cross.q_norm is None else PackedNorm(cross.q_norm, dtype)
        self._out = _packed([cross.o_proj], dtype)
        self._num_heads, self._num_kv_heads = cross.num_heads, cross.num_kv_heads

    def __call__(
        self, x: Tensor, kv: tuple[Tensor, Tensor], rotation: Rotation, mask: Tensor | None
    ) -> Tensor:
        """x [R, d] -> [R, d]."""
        query = self._query(self._norm(x)).view(len(x), self._num_heads, -1)
        if self._query_norm is not None:
            query = self._query_norm(query)
        query = turn(query, rotation)
        return self._out(attend(query, kv, mask, self._num_kv_heads))


class PackedLayer:
    """Self-attention, cross-attentions and MLP of one draft layer."""

    def __init__(self, layer: GlideLayer, dtype: torch.dtype) -> None:
        own = layer.self_attn
        self._num_heads, self._num_kv_heads = own.num_heads, own.num_kv_heads
        self._self_norm = PackedNorm(layer.self_norm, dtype)
        self._qkv = _packed([own.q_proj, own.k_proj, own.v_proj], dtype)
        self._query_norm = None if own.q_norm is None else PackedNorm(own.q_norm, dtype)
        self._key_norm = None if own.k_norm is None else PackedNorm(own.k_norm, dtype)
        self._out = _packed([own.o_proj], dtype)
        self._cross = [PackedCross(cross, dtype) for cross in layer.cross]
        self._mlp_norm = PackedNorm(layer.mlp_norm, dtype)
        self._gate_up = _packed([layer.mlp.gate_proj, layer.mlp.up_proj], dtype)
        self._down = _packed([layer.mlp.down_proj], dtype)
        self._inner = layer.mlp.down_proj.in_features

    def __call__(self, x: Tensor, cache: tuple[Tensor, Tensor], rows: Rows) -> Tensor:
        """x [R, d] -> [num_kept, d]; writes R keys and values into the cache
        ([kv_heads, capacity, head_dim] twice)."""
        query, end = self._write(x, cache, rows), rows.start + len(x)
        if rows.num_kept < len(x):
            x = x[-rows.num_kept :]
        keys, values = cache
        kv = (keys[None, :, :end], values[None, :, :end])
        x = x + self._out(attend(query, kv, rows.self_mask, self._num_kv_heads))
        if rows.target_kv:
            rotation = _last(rows.rotation, rows.num_kept)
            for cross, target in zip(self._cross, rows.target_kv, strict=True):
                x = x + cross(x, target, rotation, rows.cross_mask)
        inner = self._gate_up(self._mlp_norm(x))
        return x + self._down(F.silu(inner[:, : self._inner]) * inner[:, self._inner :])

    def _write(self, x: Tensor, cache: tuple[Tensor, Tensor], rows: Rows) -> Tensor:
        """Store keys and values of all rows; the queries of the kept ones, [num_kept, H, hd]."""
        heads, own = self._num_heads, self._num_kv_heads
        qkv = self._qkv(self._self_norm(x)).view(len(x), heads + 2 * own, -1)
        query_key = qkv[:, : heads + own]
        if self._query_norm is not None and self._key_norm is not None:
            query = self._query_norm(query_key[:, :heads])
            query_key = torch.cat((query, self._key_norm(query_key[:, heads:])), dim=1)
        query_key = turn(query_key, rows.rotation)
        end = rows.start + len(x)
        cache[0][:, rows.start : end] = query_key[:, heads:].transpose(0, 1)
        cache[1][:, rows.start : end] = qkv[:, heads + own :].transpose(0, 1)
        return query_key[-rows.num_kept :, :heads]


def turn(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotary embedding of x [R, heads, head_dim]; dimensions beyond rotary_dim pass unchanged."""
    width = rotation.cos.shape[-1]
    part = x if width == x.shape[-1] else x[..., :width]
    turned = torch.addcmul(part * rotation.cos, part.roll(width // 2, -1), rotation.sin)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


def attend(
    query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None, num_kv_heads: int
) -> Tensor:
    """Grouped attention: query [R, H, hd], kv [1, kv_heads, S, hd] -> [R, H * hd].

    The query heads of a group become rows beside each other, so keys are never repeated.
    """
    count, heads, width = query.shape
    group = heads // num_kv_heads
    if count == 1:
        grouped = query.reshape(1, num_kv_heads, group, width)
        return F.scaled_dot_product_attention(grouped, *kv, attn_mask=mask).view(1, heads * width)
    grouped = query.view(count, num_kv_heads, group, width).transpose(0, 1)
    grouped = grouped.reshape(1, num_kv_heads, count * group, width)
    if mask is not None:
        mask = mask.repeat_interleave(group, dim=0)
    out = F.scaled_dot_product_attention(grouped, *kv, attn_mask=mask)
    out = out.view(num_kv_heads, count, group, width).transpose(0, 1)
    return out.reshape(count, heads * width)


def _packed(linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> DraftLinear:
    """Several products of one input as one."""
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return DraftLinear(weight, torch.cat(biases).to(dtype) if biases else None)


def _last(rotation: Rotation, count: int) -> Rotation:
    if count == len(rotation.cos):
        return rotation
    return Rotation(rotation.cos[-count:], rotation.sin[-count:])
