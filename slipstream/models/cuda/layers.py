"""Layers of common families in ten kernels each, over transformers' weights.

What is between two products is one operator, in float32 and rounded once: a CPU's is here, a GPU's
in `kernels.py`. A layer gives what it adds to the residual stream apart, and the next norm adds it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide import rotate
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.arrays import tensor_at
from slipstream.models.torch.paged import PagedTokens, attend, attend_by_session
from slipstream.models.torch.ranks import RowParallelLinear

_FAMILIES = {f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3")}
_LINEARS = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
_LINEARS += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
LARGEST, LEAST = 448.0, 1e-12
"""The largest 8-bit float, and the least that the largest number of a row counts as."""


@torch.library.custom_op("slipstream::add_norm", mutates_args=(), device_types="cpu")
def add_norm(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x and the n parts of `more` [n * R, d] added up in order, [R, d], and the
    root-mean-square norm of that."""
    wide = x.to(torch.float32, copy=True)
    for start in range(0, len(more), max(len(x), 1)):
        wide += more[start : start + len(x)]
    total = wide.to(x.dtype)
    return total, F.rms_norm(total.float(), weight.shape, weight.float(), eps).to(x.dtype)


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


@torch.library.custom_op("slipstream::attend_others", mutates_args=(), device_types="cpu")
def attend_others(
    query: Tensor,
    others: Tensor,
    turns: list[Tensor],
    eps: float,
    tokens: list[Tensor],
    num_keys: int,
) -> Tensor:
    """Return attention [R, heads * d] of queries [R, heads, d] over keys of another model.

    `others` [S, 2] int64 are the address of each session's buffer [2 * num_keys, slots, d], of the
    queries' dtype, and the slots from head to head; `tokens` are as in `attend`, all on pages.
    Queries are rotated by `turns`: cos and sin [R, rotary_dim], and the weight [d] of their norm,
    if there is one.
    """
    (cos, sin, *norms), size = turns, query.shape[2]
    turned = query.float()
    for weight in norms:
        turned = F.rms_norm(turned, (size,), weight.float(), eps)
    turned = rotate(turned, cos.float()[:, None], sin.float()[:, None]).to(query.dtype)

    def layer_of(session: int) -> Tensor:
        address, slots = others[session].tolist()
        if not slots:
            return query.new_zeros(2 * num_keys, 1, size)
        return tensor_at(address, (2 * num_keys, slots, size), query.dtype)

    return attend_by_session(turned, layer_of, tokens, size**-0.5)


@torch.library.custom_op("slipstream::read_states", mutates_args=(), device_types="cpu")
def read_states(like: Tensor, others: Tensor, slots: Tensor, size: int) -> Tensor:
    """Return hidden states of another model, of L layers side by side, [R, L * size]; `like` has
    their dtype.

    `others` [L, S, 2] int64 are the address of each session's buffer [2, n, size / 2] and its n;
    `slots` [R] int64 are those of R / S tokens of each session in turn, below 0 for zeros.
    """
    (num_layers, sessions, _), half = others.shape, size // 2
    out = like.new_zeros(sessions, len(slots) // sessions, num_layers, 2, half)
    for into, own, places in zip(
        out, slots.view(sessions, -1), others.transpose(0, 1), strict=True
    ):
        is_there = own >= 0
        for layer, (address, num_slots) in enumerate(places.tolist()):
            if num_slots:
                buffer = tensor_at(address, (2, num_slots, half), like.dtype)
                into[is_there, layer] = buffer[:, own[is_there]].transpose(0, 1)
    return out.view(len(slots), -1)


@torch.library.custom_op("slipstream::gate", mutates_args=(), device_types="cpu")
def gate(x: Tensor) -> Tensor:
    """Return silu(a) * b [R, n] of x [R, 2 * n], which is a beside b."""
    first, second = x.float().chunk(2, 1)
    return (F.silu(first) * second).to(x.dtype)


@torch.library.custom_op("slipstream::scaled_linear", mutates_args=(), device_types="cpu")
def scaled_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Return products [R, out] of x [R, in], rounded to 8 bits row by row, and a weight [out, in]
    that is so already, by the `scales` [out] of its rows."""
    codes, own = rounded(x)
    out = F.linear(codes.float(), weight.float()) * own[:, None] * scales
    return (out if bias is None else out + bias).to(x.dtype)


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [R, n] in 8-bit floats, and the scale [R] of each, float32."""
    scales = rows.abs().amax(1).float().clamp(min=LEAST) / LARGEST
    return (rows / scales[:, None]).to(torch.float8_e4m3fn), scales


class ScaledLinear(nn.Linear):
    """A linear layer in 8-bit floats, with a scale for each output; what it multiplies is rounded
    to them, too, where it `rounds`."""

    rounds = True

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.shape[1], len(weight), bias=False, device="meta")
        self.weight, self.scales = (nn.Parameter(own, False) for own in (weight, scales))
        if bias is not None:
            self.bias = nn.Parameter(bias, False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        if not self.rounds:
            return F.linear(x, (self.weight.float() * self.scales[:, None]).to(x.dtype), self.bias)
        rows = x.reshape(-1, x.shape[-1])
        found: Tensor = scaled_linear(rows, self.weight, self.scales, self.bias)
        return found.view(*x.shape[:-1], -1)


def scale_linears(model: nn.Module, device: str, *, head: object = None) -> None:
    """Swap the linear layers of a model but its head for 8-bit ones on a device, in place and one
    by one; sizes that are no multiples of 16, which GPUs don't multiply, stay as they are."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or child is head:
                continue
            if not any(size % 16 for size in child.weight.shape):
                own = rounded(child.weight.detach().to(device))
                bias: Tensor | None = child.bias
                bias = None if bias is None else bias.detach().to(device)
                setattr(module, name, ScaledLinear(*own, bias))


Stream = tuple[Tensor, Tensor]
"""The residual stream [R, d] and what comes to it [n * R, d], in a part for each of n ranks."""


def added(norm: Any, stream: Stream) -> Stream:
    """Return the sum of a stream and its norm, [R, d] each."""
    found: Stream = add_norm(*stream, norm.weight, norm.eps)
    return found


class FusedNorm(nn.Module):
    """A norm of what has been added to the residual stream."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon
        self.keep: Callable[[Tensor], None] | None = None
        """Takes each sum, where it is kept."""

    def forward(self, stream: Tensor | Stream) -> Tensor:
        """Return the norm [1, R, d] of a stream."""
        return self.added(stream)[1][None]

    def added(self, stream: Tensor | Stream) -> Stream:
        """Return what `added` does. A stream is [1, R, d], or a sum and what comes to it."""
        found = added(self, (stream[0], stream[0][:0]) if isinstance(stream, Tensor) else stream)
        if self.keep is not None:
            self.keep(found[0])
        return found


class JoinedLayer(nn.Module):
    """The parts of one decoder layer with `norms` before attention and MLP; its products of the
    same input are one."""

    def __init__(self, layer: Any, norms: Sequence[Any]) -> None:
        super().__init__()
        own, mlp = layer.self_attn, layer.mlp
        self.qkv, self.out = joined(own.q_proj, own.k_proj, own.v_proj), own.o_proj
        self.gate_up, self.down = joined(mlp.gate_proj, mlp.up_proj), mlp.down_proj
        self.first, self.second = norms
        self.head_norms = head_norms(own)

    def placed(self, normed: Tensor, layer: Tensor, places: list[Tensor]) -> Tensor:
        """Return the queries of attention's input as `place` does."""
        found: Tensor = place(self.qkv(normed), layer, places, self.head_norms, self.first.eps)
        return found

    def mlp(self, x: Tensor, normed: Tensor) -> Stream:
        """Return the stream behind the layer, by that before its MLP."""
        return x, _parts(self.down, gate(self.gate_up(normed)))


class FusedLayer(JoinedLayer):
    """A layer of a target."""

    def __init__(self, layer: Any) -> None:
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        super().__init__(layer, [FusedNorm(norm) for norm in norms])
        self._index, self._scale = layer.self_attn.layer_idx, layer.self_attn.scaling

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
        query = self.placed(normed, layer, places)
        attended = attend(query, layer, slip_tokens.attended, self._scale)
        return self.mlp(*self.second.added((x, _parts(self.out, attended))))


def head_norms(attention: Any) -> list[Tensor]:
    """Return the weights of the norms of heads, for queries and for keys, if any."""
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return [norm.weight for norm in norms if norm is not None]


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
    if type(layer).__name__ not in _FAMILIES:
        return False
    kinds = {type(layer.get_submodule(name)) for name in _LINEARS}
    return kinds <= {nn.Linear, RowParallelLinear} or kinds == {ScaledLinear}


def joined(*linears: Any) -> nn.Linear:
    """Return one linear layer for the same inputs."""
    weight = torch.cat([linear.weight for linear in linears])
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(linears[0], ScaledLinear):
        return ScaledLinear(weight, torch.cat([linear.scales for linear in linears]), bias)
    return linear_of(weight, bias)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer over these very tensors."""
    made = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made
