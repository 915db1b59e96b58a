"""GliDe's layers for inference in torch: linears of one input as one product, few operations.

They compute what `glide.GlideLayer` computes, for the new tokens of several sessions: all share
every product, and each attends to its own session's keys. No value is read on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.glide.glide import GlideCrossAttention, GlideLayer, RmsNorm
from slipstream.models.glide.rotary_factors import RotaryFactors
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.paged import attend_each


@dataclass(frozen=True, slots=True)
class DraftAttention:
    """Attention of N new tokens of each of S sessions over dense keys and values.

    `own` of each layer [S, 2 * kv_heads, W, hd] are written at `columns` [S, N], and in the pool at
    `slots` [S * N] if given; `others` are the target's, of each layer that is read [S,
    2 * kv_heads, seen, hd], () where none is; the masks are additive, for the tokens that go on
    behind a layer's keys: `kept` [n], None is all. `reading` [n, 1] are those which see any of the
    target; `rotation` are the factors of all tokens.
    """

    own: Sequence[Tensor]
    columns: Tensor
    store_in: tuple[KvPool, Tensor] | None
    own_mask: Tensor
    others: Sequence[Tensor]
    others_mask: Tensor
    reading: Tensor
    rotation: RotaryFactors
    kept: Tensor | None = None

    def store(self, index: int, keys: Tensor, values: Tensor) -> None:
        """Store all tokens' keys and values [kv_heads, S * N, head_dim] in layer `index`."""
        fresh = torch.cat([keys, values])
        dense, (num, count) = self.own[index], self.columns.shape
        by_session = fresh.view(len(fresh), num, count, -1).transpose(0, 1)
        columns = self.columns.view(num, 1, count, 1).expand_as(by_session)
        dense.scatter_(2, columns, by_session)
        if self.store_in is not None:
            pool, slots = self.store_in
            pool.layer(index).index_copy_(1, slots, fresh)

    def attend_own(self, index: int, query: Tensor) -> Tensor:
        """Return attention [n, H * hd] of the kept queries [n, H, hd] over layer `index`."""
        return attend_each(query, self.own[index].chunk(2, 1), self.own_mask)

    def attend_target(self, index: int, query: Tensor) -> Tensor:
        """Return attention over the `index`-th target layer that is read; zeros where a token
        sees nothing of it."""
        seen = attend_each(query, self.others[index].chunk(2, 1), self.others_mask)
        return torch.where(self.reading, seen, 0.0)


class StackedLinear:
    """Linears of one input as one product."""

    def __init__(self, linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> None:
        self._weight = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self._bias = torch.cat(biases).to(dtype) if biases else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        return F.linear(x, self._weight, self._bias)


class PackedNorm:
    """Root-mean-square norm in the dtype of inference."""

    def __init__(self, norm: RmsNorm, dtype: torch.dtype) -> None:
        self._weight, self._eps = norm.weight.detach().to(dtype), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., size]."""
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


class PackedCross:
    """Cross-attention over one target layer."""

    def __init__(self, cross: GlideCrossAttention, dtype: torch.dtype) -> None:
        self._norm = PackedNorm(cross.norm, dtype)
        self._query = StackedLinear([cross.q_proj], dtype)
        self._query_norm = None if cross.q_norm is None else PackedNorm(cross.q_norm, dtype)
        self._out = StackedLinear([cross.o_proj], dtype)
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
        self._qkv = StackedLinear([own.q_proj, own.k_proj, own.v_proj], dtype)
        self._query_norm = None if own.q_norm is None else PackedNorm(own.q_norm, dtype)
        self._key_norm = None if own.k_norm is None else PackedNorm(own.k_norm, dtype)
        self._out = StackedLinear([own.o_proj], dtype)
        self._cross = [PackedCross(cross, dtype) for cross in layer.cross]
        self._mlp_norm = PackedNorm(layer.mlp_norm, dtype)
        self._gate_up = StackedLinear([layer.mlp.gate_proj, layer.mlp.up_proj], dtype)
        self._down = StackedLinear([layer.mlp.down_proj], dtype)
        self._inner = layer.mlp.down_proj.in_features

    def __call__(self, x: Tensor, index: int, attention: DraftAttention) -> Tensor:
        """Return the kept tokens [n, d] of x [R, d]; stores R keys and values in layer `index`."""
        query = self._write(x, index, attention)
        if attention.kept is not None:
            x, query = x[attention.kept], query[attention.kept]
        x = x + self._out(attention.attend_own(index, query))
        if attention.others:
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
    """A draft as its packed parts; `head` [V_d, d]; `rotation` holds the factors of positions."""

    embeddings: Tensor
    layers: Sequence[PackedLayer]
    norm: PackedNorm
    head: Tensor
    rotation: RotaryFactors
