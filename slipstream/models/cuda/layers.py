"""Layers of common families in ten kernels each, over transformers' weights.

What is between two products is one operator, in float32 and rounded once: a CPU's is here, a GPU's
in `kernels.py`. A layer gives what it adds to the residual stream apart, and the next norm adds it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide import rotate
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.paged import PagedTokens, attend
from slipstream.models.torch.ranks import RowParallelLinear

_FAMILIES = {f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3")}
_LINEARS = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
_LINEARS += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]


@torch.library.custom_op("slipstream::add_norm", mutates_args=(), device_types="cpu")
def add_norm(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x and the n parts of `more` [n * R, d] added up in order, [R, d], and the
    root-mean-square norm of that."""
    wide = x.to(torch.float32, copy=True)
    for start in range(0, len(more), max(len(x), 1)):
        wide += more[start : start + len(x)]
    total = wide.to(x.dtype)
    return total, F.rms_norm(total.float(), weight.shape, weight.float(), eps).to(x.dtype)


@add_norm.register_fake
def _(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("slipstream::place", mutates_args=("layer",), device_types="cpu")
def place(
    qkv: Tensor, layer: Tensor, places: list[Tensor], norms: list[Tensor], eps: float
) -> Tensor:
    """Return the queries [R, heads, d] of `qkv` [R, (heads + 2 * kv_heads) * d], rotated by
    `places`: cos and sin [R, rotary_dim], and the slots [R] of a pool's layer that keys and values
    go to. `norms` are the weights for queries and for keys, if any."""
    (cos, sin, slots), num_keys, size = places, len(layer) // 2, layer.shape[2]
    heads = qkv.view(len(qkv), -1, size)
    query, key, value = heads.float().split((heads.shape[1] - 2 * num_keys, num_keys, num_keys), 1)
    if norms:
        query, key = (
            F.rms_norm(own, (size,), weight.float(), eps)
            for own, weight in zip((query, key), (*norms, *norms)[:2], strict=True)
        )
    query, key = (rotate(own, cos.float()[:, None], sin.float()[:, None]) for own in (query, key))
    layer.index_copy_(1, slots, torch.cat([key, value], 1).transpose(0, 1).to(layer.dtype))
    return query.to(qkv.dtype)


@place.register_fake
def _(qkv: Tensor, layer: Tensor, places: list[Tensor], norms: list[Tensor], eps: float) -> Tensor:
    num_heads = qkv.shape[1] // layer.shape[2] - len(layer)
    return qkv.new_empty(len(qkv), num_heads, layer.shape[2])


@torch.library.custom_op("slipstream::gate", mutates_args=(), device_types="cpu")
def gate(x: Tensor) -> Tensor:
    """Return silu(a) * b [R, n] of x [R, 2 * n], which is a beside b."""
    first, second = x.float().chunk(2, 1)
    return (F.silu(first) * second).to(x.dtype)


@gate.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(len(x), x.shape[1] // 2)


Stream = tuple[Tensor, Tensor]
"""The residual stream [R, d] and what comes to it [n * R, d], in a part for each of n ranks."""


class FusedNorm(nn.Module):
    """A norm of what has been added to the residual stream."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, stream: Tensor | Stream) -> Tensor:
        """Return the norm [1, R, d] of a stream."""
        return self.added(stream)[1][None]

    def added(self, stream: Tensor | Stream) -> Stream:
        """Return the sum of a stream and its norm, [R, d] each. A stream is [1, R, d], or a sum and
        what comes to it."""
        x, more = (stream[0], stream[0][:0]) if isinstance(stream, Tensor) else stream
        found: Stream = add_norm(x, more, self.weight, self.eps)
        return found


class FusedLayer(nn.Module):
    """One decoder layer, whose products of the same input are one."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own, mlp = layer.self_attn, layer.mlp
        self._index, self._scale = own.layer_idx, own.scaling
        self.qkv, self.out = joined(own.q_proj, own.k_proj, own.v_proj), own.o_proj
        self.gate_up, self.down = joined(mlp.gate_proj, mlp.up_proj), mlp.down_proj
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self.first, self.second = (FusedNorm(norm) for norm in norms)
        heads = [getattr(own, name) for name in ("q_norm", "k_norm") if hasattr(own, name)]
        self.heads = nn.ModuleList(map(FusedNorm, heads))

    def forward(
        self,
        stream: Tensor | Stream,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        slip_tokens: PagedTokens,
        slip_pool: KvPool,
        **_: Any,
    ) -> Stream:
        """Return the stream behind the layer."""
        x, normed = self.first.added(stream)
        layer = slip_pool.layer(self._index)
        places = [*(own[0] for own in position_embeddings), slip_tokens.slots]
        norms = [norm.weight for norm in self.heads]
        query = place(self.qkv(normed), layer, places, norms, self.first.eps)
        attended = attend(query, layer, slip_tokens.attended, self._scale)
        x, normed = self.second.added((x, _parts(self.out, attended)))
        return x, _parts(self.down, gate(self.gate_up(normed)))


def _parts(linear: nn.Module, x: Tensor) -> Tensor:
    """Return what adds up to a layer's product [R, d]: [n * R, d] of n ranks that share it."""
    found: Tensor = linear.parts(x) if isinstance(linear, RowParallelLinear) else linear(x)
    return found


def fuse(model: Any) -> None:
    """Swap the layers of a model of a common family, and its last norm, in place."""
    body, config = model.base_model, model.config.get_text_config()
    if getattr(config, "hidden_act", "") == "silu" and all(map(_is_known, body.layers)):
        for index, layer in enumerate(body.layers):
            body.layers[index] = FusedLayer(layer)
        body.norm = FusedNorm(body.norm)


def _is_known(layer: nn.Module) -> bool:
    is_known = type(layer).__name__ in _FAMILIES
    known = (nn.Linear, RowParallelLinear)
    return is_known and all(type(layer.get_submodule(name)) in known for name in _LINEARS)


def joined(*linears: Any) -> nn.Linear:
    """Return one linear layer for the same inputs."""
    weight = torch.cat([linear.weight for linear in linears])
    made = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    if biases:
        made.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return made
