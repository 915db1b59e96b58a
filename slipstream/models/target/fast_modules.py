"""The usual parts of a decoder layer as few, packed operations, patched into a transformers model.

What has the usual form (separate q, k, v, o projections with rotary embedding by halves, gated
MLP, RMS norms) is replaced by a module here that computes the same function on [rows, width]
tensors; everything else keeps transformers' module. At one row a small operation costs as much as
its launch, so their number counts. `causal.py` compares the model's output before and after.
"""

import math
import sys
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slipstream.models.kv.paged import PagedTokens
from slipstream.models.kv.pool import KvPool
from slipstream.models.numerics.linears import Linears
from slipstream.models.target.attention import attend
from slipstream.models.target.batched_tokens import BatchedTokens
from slipstream.models.target.rotary_factors import RotaryFactors

Tables = tuple[Tensor, Tensor]
_MLP = ("gate_proj", "up_proj", "down_proj")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_HEAD_NORMS = ("q_norm", "k_norm")
_LAYER = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


class FastLinear(nn.Module):
    """An `nn.Linear` with its weight packed."""

    def __init__(self, linear: nn.Linear, linears: Linears) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self._product = linears.make([linear])

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], -1)


class FastNorm(nn.Module):
    """x * weight / sqrt(mean(x**2) + eps), as the ratio of x to a length.

    On CUDA it is torch's fused norm, which adds up each row alone: the order in which a length's
    squares are added there depends on how many rows there are.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        weight: Tensor = norm.weight  # type: ignore[assignment]
        size = weight.shape[0]
        eps: float = norm.variance_epsilon  # type: ignore[assignment]
        self._eps, self._given = eps, weight.detach()
        self._weight = self._given.float() * math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * eps), device=weight.device)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cuda":
            return F.rms_norm(x, self._given.shape, self._given, self._eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        ratio = x / torch.hypot(length, self._floor)
        return torch.mul(ratio, self._weight, out=torch.empty_like(x))


class FastMlp(nn.Module):
    """A gated MLP with gate and up projection as one product."""

    def __init__(self, mlp: nn.Module, linears: Linears) -> None:
        super().__init__()
        gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        assert isinstance(gate, nn.Linear)
        self._width = gate.out_features
        self._wide = linears.make([gate, up])
        self._down = linears.make([down])
        self._act: Callable[[Tensor], Tensor] = mlp.act_fn  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self._wide(x.reshape(-1, x.shape[-1])).split(self._width, 1)
        return self._down(self._act(gate).mul_(up)).view(x.shape)


class RotaryTables:
    """Rotary factors of the running forward, made once for all layers."""

    def __init__(self) -> None:
        self._made: tuple[Tables, RotaryFactors] | None = None

    def factors(self, source: Tables) -> RotaryFactors:
        """Return the factors of transformers' pair of cos and sin, [1, rows, d] each."""
        if self._made is None or self._made[0] is not source:
            self._made = source, RotaryFactors.of(source[0][0], source[1][0])
        return self._made[1]


class FastAttention(nn.Module):
    """Attention of the usual form over our cache, with q, k and v as one product."""

    def __init__(self, block: nn.Module, linears: Linears, rotation: RotaryTables) -> None:
        super().__init__()
        q, k, v, o = block.q_proj, block.k_proj, block.v_proj, block.o_proj
        assert isinstance(q, nn.Linear)
        assert isinstance(k, nn.Linear)
        self._dim: int = block.head_dim  # type: ignore[assignment]
        self._num_heads = q.out_features // self._dim
        self._num_rotated = self._num_heads + k.out_features // self._dim
        self._scale: float = block.scaling  # type: ignore[assignment]
        self.layer_idx: int = block.layer_idx  # type: ignore[assignment]
        self._qkv = linears.make([q, k, v])
        self._out = linears.make([o])
        self._rotation, self._has_rope = rotation, getattr(block, "use_rope", True)
        norms = (getattr(block, "q_norm", None), getattr(block, "k_norm", None))
        self._norms = tuple(FastNorm(norm) for norm in norms if norm is not None)

    def run(
        self, x: Tensor, tables: Tables, rows: BatchedTokens | PagedTokens, pool: KvPool
    ) -> Tensor:
        """Attention of [rows, width]; the rows' keys and values go into the cache."""
        heads = self._qkv(x).view(len(rows), -1, self._dim)
        self._rotate(heads[:, : self._num_rotated], self._rotation.factors(tables))
        query, fresh = heads[:, : self._num_heads], heads[:, self._num_heads :]
        layer = pool.layer(self.layer_idx)
        write(layer, fresh, rows)
        return self._out(attend(query, fresh, layer, rows, self._scale))

    def _rotate(self, heads: Tensor, factors: RotaryFactors) -> None:
        if self._norms:
            query, key = heads[:, : self._num_heads], heads[:, self._num_heads :]
            query.copy_(self._norms[0](query))
            key.copy_(self._norms[1](key))
        if self._has_rope:
            factors.rotate_(heads)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tables,
        *,
        slip_rows: BatchedTokens | PagedTokens,
        slip_pool: KvPool,
        **_: object,
    ) -> tuple[Tensor, None]:
        out = self.run(hidden_states[0], position_embeddings, slip_rows, slip_pool)
        return out.unsqueeze(0), None


class FastLayer(nn.Module):
    """A pre-norm decoder layer whose parts are all of the usual form."""

    def __init__(
        self, norms: tuple[FastNorm, FastNorm], attention: FastAttention, mlp: FastMlp
    ) -> None:
        """`norms` stand before the attention and before the MLP."""
        super().__init__()
        self._before_attention, self._before_mlp = norms
        self._attention = attention
        self._mlp = mlp

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: Tables,
        slip_rows: BatchedTokens | PagedTokens,
        slip_pool: KvPool,
        **_: object,
    ) -> Tensor:
        # Parts are called past nn.Module's hooks: at one row those cost as much as a product.
        x = hidden_states[0]
        normed = self._before_attention.forward(x)
        x = self._attention.run(normed, position_embeddings, slip_rows, slip_pool).add_(x)
        normed = self._before_mlp.forward(x)
        return self._mlp.forward(normed).add_(x).unsqueeze(0)


def write(layer: Tensor, fresh: Tensor, rows: BatchedTokens | PagedTokens) -> None:
    """Put the rows' keys and values [R, 2 * kv_heads, d] into their slots."""
    if rows.write_start is None:
        layer.index_copy_(1, rows.slots, fresh.transpose(0, 1))
    else:
        start = rows.write_start
        layer[:, start : start + len(rows)] = fresh.transpose(0, 1)


def patch_modules(model: nn.Module, linears: Linears, rotation: RotaryTables) -> None:
    """Swap every part of `model` that has an equal, faster form, from the leaves up."""
    for name, child in list(model.named_children()):
        swapped = _swapped(child, linears, rotation)
        if swapped is None:
            patch_modules(child, linears, rotation)
            swapped = _layer(child) or child
        setattr(model, name, swapped)


def _swapped(module: nn.Module, linears: Linears, rotation: RotaryTables) -> nn.Module | None:
    if _is_usual_attention(module):
        return FastAttention(module, linears, rotation)
    if _has_linears(module, _MLP) and callable(getattr(module, "act_fn", None)):
        return FastMlp(module, linears)
    if _is_linear(module):
        return FastLinear(module, linears)
    return FastNorm(module) if is_usual_norm(module) else None


def _has_linears(module: nn.Module, names: tuple[str, ...]) -> bool:
    return all(_is_linear(getattr(module, name, None)) for name in names)


def _is_linear(module: object) -> TypeGuard[nn.Linear]:
    """Return whether a module is a linear, and computes nothing else."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def is_usual_norm(module: object) -> bool:
    """Return whether a module is an RMS norm of the usual form."""
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


def _is_usual_attention(module: nn.Module) -> bool:
    norms = [getattr(module, name, None) for name in _HEAD_NORMS]
    has_others = {name for name, _ in module.named_children()} - {*_ATTENTION, *_HEAD_NORMS}
    return (
        _has_linears(module, _ATTENTION)
        and all(hasattr(module, name) for name in ("scaling", "layer_idx"))
        and getattr(module, "attn_logit_softcapping", None) is None
        and not (has_others or [*module.parameters(recurse=False)])
        and _rotates_halves(module)
        and (norms == [None, None] or all(_is_norm_of_heads(norm, module) for norm in norms))
    )


def _rotates_halves(module: nn.Module) -> bool:
    """Return whether a module's code pairs the elements of one half of a head with the other's."""
    rotate = getattr(sys.modules[type(module).__module__], "rotate_half", None)
    return rotate is not None and rotate(torch.arange(4)).tolist() == [-2, -3, 0, 1]


def _is_norm_of_heads(norm: Any, block: Any) -> bool:
    return is_usual_norm(norm) and norm.weight.numel() == block.head_dim


def _layer(module: nn.Module) -> FastLayer | None:
    """A layer out of exactly the four parts of a pre-norm one, each swapped already."""
    parts = dict(module.named_children())
    if parts.keys() != set(_LAYER) or hasattr(module, "residual_multiplier"):
        return None
    first, attention, second, mlp = (parts[name] for name in _LAYER)
    if not isinstance(first, FastNorm) or not isinstance(second, FastNorm):
        return None
    if not isinstance(attention, FastAttention) or not isinstance(mlp, FastMlp):
        return None
    return FastLayer((first, second), attention, mlp)
