"""One GliDe layer for inference: packed linears, its own keys and values in a pool, few operations.

Computes what `glide.GlideLayer` computes, for a handful of tokens of one session or of several:
they share every product, and each attends to its own session's keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.glide.glide import GlideCrossAttention, GlideLayer, RmsNorm
from slipstream.models.kv.paged import attend_each
from slipstream.models.kv.pool import KvPool
from slipstream.models.target.rotary_factors import RotaryFactors


class DraftLinear:
    """`x @ weight.T + bias` for x [rows, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


Slots = slice | Tensor
"""Places in a pool's buffers: neighbours, or [n] int64."""


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """`count` new tokens of one session: their slots in the pool, all slots up to the last of them,
    `seen`, and the target's keys.

    The last `num_kept` go on behind the self-attention's keys and values; `self_mask`
    [num_kept, S] and `cross_mask` [num_kept, num_seen] are added to their scores, None where a
    token sees everything. target_kv: per target layer [1, kv_heads, num_seen, head_dim] twice, ()
    to skip.
    """

    slots: Slots
    seen: Slots
    count: int
    num_kept: int
    self_mask: Tensor | None
    target_kv: Sequence[tuple[Tensor, Tensor]]
    cross_mask: Tensor | None


class DraftAttention(Protocol):
    """Attention of a pass's R tokens. `rotation` are the rotary factors of all, `kept` picks the
    tokens that go on behind a layer's keys; None is all of them."""

    @property
    def rotation(self) -> RotaryFactors: ...

    @property
    def kept(self) -> Slots | None: ...

    @property
    def num_kept(self) -> int:
        """Tokens that go on."""
        ...

    @property
    def reads_target(self) -> bool:
        """Return whether any of them reads the target."""
        ...

    def store(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Store all tokens' keys and values [kv_heads, R, head_dim] in layer `index`."""
        ...

    def attend_own(self, index: int, query: Tensor) -> Tensor:
        """Return attention [n, H * hd] of the kept queries [n, H, hd] over layer `index`."""
        ...

    def attend_target(self, index: int, query: Tensor) -> Tensor:
        """Return attention over the `index`-th target layer that is read; zeros where a token
        sees nothing of it."""
        ...


@dataclass(frozen=True, slots=True)
class PooledAttention:
    """`DraftAttention` of sessions in `pool`, one after the other."""

    pool: KvPool
    parts: Sequence[DraftTokens]
    rotation: RotaryFactors
    kept: Slots | None = None

    @property
    def num_kept(self) -> int:
        return sum(part.num_kept for part in self.parts)

    @property
    def reads_target(self) -> bool:
        return any(part.target_kv for part in self.parts)

    def store(self, index: int, keys: Tensor, values: Tensor) -> None:
        buffer, own, start = self.pool.layer(index), keys.size(0), 0
        for part in self.parts:
            end = start + part.count
            buffer[:own, part.slots] = keys[:, start:end]
            buffer[own:, part.slots] = values[:, start:end]
            start = end

    def attend_own(self, index: int, query: Tensor) -> Tensor:
        buffer = self.pool.layer(index)

        def attend(part: DraftTokens, own: Tensor) -> Tensor:
            keys, values = buffer[None, :, part.seen].chunk(2, 1)
            return _attend(own, (keys, values), part.self_mask)

        return self._by_session(query, attend)

    def attend_target(self, index: int, query: Tensor) -> Tensor:

        def attend(part: DraftTokens, own: Tensor) -> Tensor:
            if not part.target_kv:
                return own.new_zeros(own.shape).flatten(1)
            return _attend(own, part.target_kv[index], part.cross_mask)

        return self._by_session(query, attend)

    def _by_session(self, query: Tensor, attend: Callable[[DraftTokens, Tensor], Tensor]) -> Tensor:
        if len(self.parts) == 1:
            return attend(self.parts[0], query)
        queries = query.split([part.num_kept for part in self.parts])
        pairs = zip(self.parts, queries, strict=True)
        return torch.cat([attend(part, own) for part, own in pairs if part.num_kept])


def _attend(query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
    """Return attention [n, H * hd] of [n, H, hd] over [1, kv_heads, S, hd], under a mask [n, S]."""
    if mask is not None:
        mask = mask.repeat_interleave(query.shape[1] // kv[0].shape[1], dim=0)
    return attend_each(query, kv, mask)


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
        """Return the norm of x [..., size]."""
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
        self._num_heads = cross.num_heads

    def __call__(
        self, x: Tensor, index: int, keys: DraftAttention, rotary: RotaryFactors
    ) -> Tensor:
        """Return [n, d] for the kept tokens' x [n, d], out of the `index`-th target layer."""
        query = self._query(self._norm(x)).view(x.size(0), self._num_heads, -1)
        if self._query_norm is not None:
            query = self._query_norm(query)
        # The output has no bias, so that nothing is added where nothing is read.
        return self._out(keys.attend_target(index, rotary.rotate(query)))


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

    def __call__(self, x: Tensor, index: int, attention: DraftAttention) -> Tensor:
        """Return the kept tokens [n, d] of x [R, d]; stores R keys and values in layer `index`."""
        query = self._write(x, index, attention)
        if not attention.num_kept:
            return x[:0]
        if attention.kept is not None:
            x, query = x[attention.kept], query[attention.kept]
        x = x + self._out(attention.attend_own(index, query))
        if attention.reads_target:
            rotation = attention.rotation.at(attention.kept)
            for layer, cross in enumerate(self._cross):
                x = x + cross(x, layer, attention, rotation)
        inner = self._gate_up(self._mlp_norm(x))
        return x + self._down(F.silu(inner[:, : self._inner]) * inner[:, self._inner :])

    def _write(self, x: Tensor, index: int, attention: DraftAttention) -> Tensor:
        """Store keys and values of all tokens; return their queries [R, H, hd]."""
        heads, own = self._num_heads, self._num_kv_heads
        qkv = self._qkv(self._self_norm(x)).view(x.size(0), heads + 2 * own, -1)
        query_key = qkv[:, : heads + own]
        if self._query_norm is not None and self._key_norm is not None:
            query = self._query_norm(query_key[:, :heads])
            query_key = torch.cat((query, self._key_norm(query_key[:, heads:])), dim=1)
        query_key = attention.rotation.rotate(query_key)
        keys, values = query_key[:, heads:].transpose(0, 1), qkv[:, heads + own :].transpose(0, 1)
        attention.store(index, keys, values)
        return query_key[:, :heads]


@dataclass(frozen=True, slots=True)
class GlideParts:
    """A draft as its packed parts; `rotation` holds the factors of all positions."""

    embeddings: Tensor
    layers: Sequence[PackedLayer]
    norm: PackedNorm
    head: DraftLinear
    rotation: RotaryFactors


def _packed(linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> DraftLinear:
    """Return several linears of one input as one."""
    weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return DraftLinear(weight, torch.cat(biases).to(dtype) if biases else None)
