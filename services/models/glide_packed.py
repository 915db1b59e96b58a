"""One GliDe layer for inference: packed products, its own keys and values in a pool, few ops.

Computes what `glide.GlideLayer` computes, for a handful of rows of one session or of several: they
share every product, and each attends to its own session's keys. Knows nothing of trees or
vocabularies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.glide import GlideCrossAttention, GlideLayer, RmsNorm
from slipstream.models.linears import DraftLinear
from slipstream.models.pool import KvPool


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary factors of R rows: cos [R, 1, rotary_dim], and sin with its first half negated, so
    that rotating is two products and a roll."""

    cos: Tensor
    sin: Tensor


Slots = slice | Tensor
"""Places in a pool's buffers: neighbours, or [n] int64."""


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` new rows of one session: their slots in the pool, those up to the last of them, which
    are `seen`, and the target's keys.

    The last `num_kept` rows go on behind the self-attention's keys and values; `self_mask`
    [num_kept, S] and `cross_mask` [num_kept, num_seen] are added to their scores, None where a row
    sees everything. target_kv: per target layer [1, kv_heads, num_seen, head_dim] twice, () to
    skip.
    """

    slots: Slots
    seen: Slots
    count: int
    num_kept: int
    self_mask: Tensor | None
    target_kv: Sequence[tuple[Tensor, Tensor]]
    cross_mask: Tensor | None


class Seats(Protocol):
    """R rows of a pass, with the keys that each may look back on. `rotation` are the rotary
    factors of all, `kept` picks the rows that go on; None is all of them."""

    @property
    def rotation(self) -> Rotation: ...

    @property
    def kept(self) -> Tensor | slice | None: ...

    @property
    def num_kept(self) -> int:
        """Rows that go on."""
        ...

    @property
    def is_reading(self) -> bool:
        """Whether any of them reads the target."""
        ...

    def kept_rotation(self) -> Rotation:
        """Rotary factors of the rows that go on."""
        ...

    def store(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Have all rows' keys and values [kv_heads, R, head_dim] in layer `index`."""
        ...

    def look_back(self, index: int, query: Tensor, num_kv_heads: int) -> Tensor:
        """Attention of the kept rows [R, H, hd] over the keys of layer `index`, [R, H * hd]."""
        ...

    def look_across(self, index: int, query: Tensor, num_kv_heads: int) -> Tensor:
        """The same over the target's keys, those of the `index`-th target layer that is read;
        nothing, in zeros, for rows that see none."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of a pass, session by session, with the rotary factors of each: see `Seats`.

    `pool` holds every session's keys.
    """

    pool: KvPool
    parts: Sequence[Rows]
    rotation: Rotation
    kept: Tensor | slice | None = None

    @property
    def num_kept(self) -> int:
        """See `Seats`."""
        return sum(rows.num_kept for rows in self.parts)

    @property
    def is_reading(self) -> bool:
        """See `Seats`."""
        return any(rows.target_kv for rows in self.parts)

    def kept_rotation(self) -> Rotation:
        """See `Seats`."""
        if self.kept is None:
            return self.rotation
        return Rotation(self.rotation.cos[self.kept], self.rotation.sin[self.kept])

    def store(self, index: int, keys: Tensor, values: Tensor) -> None:
        """See `Seats`."""
        buffer, own, at = self.pool.layer(index), keys.size(0), 0
        for rows in self.parts:
            end = at + rows.count
            buffer[:own, rows.slots] = keys[:, at:end]
            buffer[own:, rows.slots] = values[:, at:end]
            at = end

    def look_back(self, index: int, query: Tensor, num_kv_heads: int) -> Tensor:
        """See `Seats`."""
        buffer = self.pool.layer(index)
        if len(self.parts) == 1:
            return _look_back(buffer, num_kv_heads, self.parts[0], query)
        return by_session(self.parts, query, partial(_look_back, buffer, num_kv_heads))

    def look_across(self, index: int, query: Tensor, num_kv_heads: int) -> Tensor:
        """See `Seats`."""
        if len(self.parts) == 1:
            return _look_across(index, num_kv_heads, self.parts[0], query)
        return by_session(self.parts, query, partial(_look_across, index, num_kv_heads))


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
        out = torch.layer_norm(both, self._shape, self._weight, None, self._eps)
        return out[..., : self._size]


class PackedCross:
    """Cross-attention over one target layer."""

    def __init__(self, cross: GlideCrossAttention, dtype: torch.dtype) -> None:
        self._norm = PackedNorm(cross.norm, dtype)
        self._query = _packed([cross.q_proj], dtype)
        self._query_norm = None if cross.q_norm is None else PackedNorm(cross.q_norm, dtype)
        self._out = _packed([cross.o_proj], dtype)
        self._num_heads, self._num_kv_heads = cross.num_heads, cross.num_kv_heads

    def __call__(self, x: Tensor, index: int, seats: Seats, rotation: Rotation) -> Tensor:
        """x [R, d], the kept rows -> [R, d]; reads the `index`-th target layer of each session."""
        query = self._query(self._norm(x)).view(x.size(0), self._num_heads, -1)
        if self._query_norm is not None:
            query = self._query_norm(query)
        query = turn(query, rotation)
        # The output has no bias, so that nothing is added where nothing is read.
        return self._out(seats.look_across(index, query, self._num_kv_heads))


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

    def __call__(self, x: Tensor, index: int, seats: Seats) -> Tensor:
        """x [R, d] -> the kept rows [num_kept, d]; writes R keys and values into the pool's layer
        `index`."""
        query = self._write(x, index, seats)
        if not seats.num_kept:
            return x[:0]
        if seats.kept is not None:
            x, query = x[seats.kept], query[seats.kept]
        x = x + self._out(seats.look_back(index, query, self._num_kv_heads))
        if seats.is_reading:
            rotation = seats.kept_rotation()
            for at, cross in enumerate(self._cross):
                x = x + cross(x, at, seats, rotation)
        inner = self._gate_up(self._mlp_norm(x))
        return x + self._down(F.silu(inner[:, : self._inner]) * inner[:, self._inner :])

    def _write(self, x: Tensor, index: int, seats: Seats) -> Tensor:
        """Store keys and values of all rows; their queries, [R, H, hd]."""
        heads, own = self._num_heads, self._num_kv_heads
        qkv = self._qkv(self._self_norm(x)).view(x.size(0), heads + 2 * own, -1)
        query_key = qkv[:, : heads + own]
        if self._query_norm is not None and self._key_norm is not None:
            query = self._query_norm(query_key[:, :heads])
            query_key = torch.cat((query, self._key_norm(query_key[:, heads:])), dim=1)
        query_key = turn(query_key, seats.rotation)
        keys, values = query_key[:, heads:].transpose(0, 1), qkv[:, heads + own :].transpose(0, 1)
        seats.store(index, keys, values)
        return query_key[:, :heads]


def _look_back(buffer: Tensor, num_kv_heads: int, rows: Rows, query: Tensor) -> Tensor:
    keys, values = buffer[None, :, rows.seen].chunk(2, 1)
    return attend(query, (keys, values), rows.self_mask, num_kv_heads)


def _look_across(index: int, num_kv_heads: int, rows: Rows, query: Tensor) -> Tensor:
    if not rows.target_kv:
        return query.new_zeros(query.shape).flatten(1)
    return attend(query, rows.target_kv[index], rows.cross_mask, num_kv_heads)


@dataclass(frozen=True, slots=True)
class GlideParts:
    """A draft as its packed parts; `rotation` holds the factors of all positions."""

    embeddings: Tensor
    layers: Sequence[PackedLayer]
    norm: PackedNorm
    head: DraftLinear
    rotation: Rotation


def by_session(
    parts: Sequence[Rows], query: Tensor, look: Callable[[Rows, Tensor], Tensor]
) -> Tensor:
    """Attention of all kept rows [R, H, hd] -> [R, H * hd], each session's by `look`."""
    queries = query.split([rows.num_kept for rows in parts])
    pairs = zip(parts, queries, strict=True)
    return torch.cat([look(rows, own) for rows, own in pairs if rows.num_kept])


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
        out = F.scaled_dot_product_attention(grouped, *kv, attn_mask=mask)
        return out.reshape(1, heads * width)
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
