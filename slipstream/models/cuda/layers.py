"""Layers of common families in ten kernels each, over transformers' weights.

What is between two products is one operator, in float32 and rounded once: a CPU's is here, a GPU's
in `kernels.py`. A layer gives what it adds to the residual stream apart, and the next norm adds it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide import rotate
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.arrays import Rows, rounded, tensor_at
from slipstream.models.torch.paged import PagedTokens, attend, attend_by_session
from slipstream.models.torch.ranks import RowParallelLinear, linear_of

_FAMILIES = {f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3")}
_LINEARS = [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")]
_LINEARS += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]


@torch.library.custom_op("slipstream::add_norm", mutates_args=(), device_types="cpu")
def add_norm(x: Tensor, more: Tensor, weight: Tensor, eps: float, rounds: bool) -> list[Tensor]:
    """Return x and the n parts of `more` [n * R, d] added up in order, [R, d], and the
    root-mean-square norm of that; where it `rounds`, in 8-bit floats."""
    wide = x.to(torch.float32, copy=True)
    for start in range(0, len(more), max(len(x), 1)):
        wide += more[start : start + len(x)]
    total = wide.to(x.dtype)
    normed = F.rms_norm(total.float(), weight.shape, weight.float(), eps)
    return [total, *(rounded(normed) if rounds else [normed.to(x.dtype)])]


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
    query: Tensor, turns: list[Tensor], eps: float, tokens: list[Tensor], num_kv: int, rounds: bool
) -> Rows:
    """Return attention [R, heads * d] of queries [R, heads, d] over keys of another model, as
    `attend` does.

    `tokens` are as in `attend`, all on pages, but for a first tensor [S, 2] int64: the address of
    each session's buffer [2 * num_kv, slots, d], of the queries' dtype, and the slots from head
    to head.
    Queries are rotated by `turns`: cos and sin [R, rotary_dim], and the weight [d] of their norm,
    if there is one.
    """
    (cos, sin, *norms), (others, *seen), size = turns, tokens, query.shape[2]
    turned = query.float()
    for weight in norms:
        turned = F.rms_norm(turned, (size,), weight.float(), eps)
    turned = rotate(turned, cos.float()[:, None], sin.float()[:, None]).to(query.dtype)

    def layer_of(session: int) -> Tensor:
        address, slots = others[session].tolist()
        if not slots:
            return query.new_zeros(2 * num_kv, 1, size)
        return tensor_at(address, (2 * num_kv, slots, size), query.dtype)

    out = attend_by_session(turned, layer_of, seen, size**-0.5)
    return rounded(out) if rounds else [out]


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


@torch.library.custom_op("slipstream::finish", mutates_args=(), device_types="cpu")
def finish(x: Tensor, gates: bool, rounds: bool) -> Rows:
    """Return silu(a) * b [R, n] of x [R, 2 * n], which is a beside b, where it `gates`, and else x
    [R, n]; where it `rounds`, in 8-bit floats."""
    first, *others = x.float().chunk(1 + gates, 1)
    own = F.silu(first) * others[0] if gates else first
    return rounded(own) if rounds else [own.to(x.dtype)]


class ScaledLinear(nn.Linear):
    """A linear layer in 8-bit floats, with a scale [out, 1] for each output. It takes rows in such
    floats and their scales, and rounds others where it `rounds`; its outputs are bfloat16."""

    rounds = True

    def __init__(self, weight: Rows, bias: Tensor | None) -> None:
        super().__init__(weight[0].shape[1], len(weight[0]), bias=False, device="meta")
        self.weight, self.scales = (nn.Parameter(own, False) for own in weight)
        if bias is not None:
            self.bias = nn.Parameter(bias, False)

    def forward(self, x: Tensor, own: Tensor | None = None) -> Tensor:
        """x [..., in] -> [..., out]; with their `own` scales [R, 1], x [R, in] are 8-bit floats."""
        if not self.rounds:
            return F.linear(x, (self.weight.float() * self.scales).to(x.dtype), self.bias)
        codes, own = finish(x.flatten(0, -2), False, True) if own is None else (x, own)
        given = (codes, self.weight.t(), own, self.scales.t(), self.bias)
        return torch._scaled_mm(*given, out_dtype=torch.bfloat16).view(*x.shape[:-1], -1)


def scale_linears(model: nn.Module, device: str, *, head: object = None) -> None:
    """Swap the linear layers of a model but its head for 8-bit ones on a device, in place and one
    by one; sizes that are no multiples of 16, which GPUs don't multiply, stay as they are."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear or head in {child, module}:
                continue
            if not any(size % 16 for size in child.weight.shape):
                own = rounded(child.weight.detach().to(device))
                bias: Tensor | None = child.bias
                bias = None if bias is None else bias.detach().to(device)
                setattr(module, name, ScaledLinear(own, bias))


Stream = tuple[Tensor, Tensor]
"""The residual stream [R, d] and what comes to it [n * R, d], in a part for each of n ranks."""


def added(norm: Any, stream: Tensor | Stream, rounds: bool = False) -> list[Tensor]:
    """Return the sum of a stream and its norm as `add_norm` does. A stream is [1, R, d], or a sum
    and what comes to it."""
    given = (stream[0], stream[0][:0]) if isinstance(stream, Tensor) else stream
    found: list[Tensor] = add_norm(*given, norm.weight, norm.eps, rounds)
    if isinstance(norm, FusedNorm) and norm.keep is not None:
        norm.keep(found[0])
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
        return added(self, stream)[1][None]


class JoinedLayer(nn.Module):
    """The parts of one decoder layer with `norms` before attention and MLP; its products of the
    same input are one. Where they and the `others` of a layer are all in 8-bit floats, it `rounds`
    what they take, and such rows have their scales behind them."""

    def __init__(self, layer: Any, norms: Sequence[Any], others: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        own, mlp = layer.self_attn, layer.mlp
        self.qkv, self.out = joined(own.q_proj, own.k_proj, own.v_proj), own.o_proj
        self.gate_up, self.down = joined(mlp.gate_proj, mlp.up_proj), mlp.down_proj
        self.first, self.second = norms
        self.head_norms = head_norms(own)
        linears = (self.qkv, self.out, self.gate_up, self.down, *others)
        self.rounds = _kinds(linears) == {ScaledLinear}

    def mlp(self, x: Tensor, *normed: Tensor) -> Stream:
        """Return the stream behind the layer, by that before its MLP."""
        return x, _parts(self.down, finish(self.gate_up(*normed), True, self.rounds))


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
        x, *normed = added(self.first, stream, self.rounds)
        layer = slip_pool.layer(self._index)
        places = [*(own[0] for own in position_embeddings), slip_tokens.slots]
        query = place(self.qkv(*normed), layer, places, self.head_norms, self.first.eps)
        attended = attend(query, layer, slip_tokens.attended, self._scale, self.rounds)
        return self.mlp(*added(self.second, (x, _parts(self.out, attended)), self.rounds))


def head_norms(attention: Any) -> list[Tensor]:
    """Return the weights of the norms of heads, for queries and for keys, if any."""
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return [norm.weight for norm in norms if norm is not None]


def _parts(linear: nn.Module, rows: Sequence[Tensor]) -> Tensor:
    """Return what adds up to a layer's product [R, d]: [n * R, d] of n ranks that share it."""
    found: Tensor = (linear.parts if isinstance(linear, RowParallelLinear) else linear)(*rows)
    return found


def _kinds(linears: Iterable[nn.Module]) -> set[type[nn.Module]]:
    """Return the types of linear layers, or of this rank's parts of them."""
    return {type(own.part if isinstance(own, RowParallelLinear) else own) for own in linears}


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
    return _kinds(map(layer.get_submodule, _LINEARS)) in ({nn.Linear}, {ScaledLinear})


def joined(*linears: Any) -> nn.Linear:
    """Return one linear layer for the same inputs."""
    weight = torch.cat([linear.weight for linear in linears])
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    if isinstance(linears[0], ScaledLinear):
        return ScaledLinear([weight, torch.cat([linear.scales for linear in linears])], bias)
    return linear_of(weight, bias)
