"""Weights of transformers' decoders, as the native forward takes them.

Knows which modules have the usual form; what has another one is refused with a reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slipstream.models.native.library import NotNative
from slipstream.models.products import stacked_bias
from slipstream.models.surgery import is_usual_norm

BFLOAT16, FLOAT32, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K = range(7)
"""Element types: see `Kind` in `src/model.h`."""
_BLOCKS = {Q4_0: (32, 18), Q4_1: (32, 20), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}
"""Elements and bytes of the blocks of GGUF files."""
FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}
_TILE, _LARGEST = 16, 127
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings that depend on the position alone."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One matrix [outputs, inputs] in an element type, or [outputs, bytes] in blocks; `bias`
    [outputs] is float32."""

    kind: int
    matrix: Tensor
    bias: Tensor | None = None

    @property
    def num_inputs(self) -> int:
        """Elements of a row."""
        elements, num_bytes = _BLOCKS.get(self.kind, (1, 1))
        return self.matrix.shape[1] // num_bytes * elements


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """An attention or an MLP behind its norm: see `Block` in `src/model.h`. Norms are float32."""

    norm: Tensor
    into: Weights
    out: Weights
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    values: Weights | None = None


Keep = Callable[[Tensor, Tensor | None], Weights]
"""In which element type a matrix is kept, with its bias."""


def check_usual(model: Any) -> None:
    """Raises `NotNative` for a model that is not a decoder of the usual form."""
    config, body = model.config.get_text_config(), model.base_model
    if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
        raise NotNative(f"{model.dtype} on {model.device.type} has no native kernels")
    if config.model_type not in FAMILIES:
        raise NotNative(f"models of type {config.model_type} have no native forward")
    _check_rope(config)
    parts = {"embed_tokens", "layers", "norm", "rotary_emb"}
    if {name for name, _ in body.named_children()} != parts:
        raise NotNative(f"{type(model).__name__} has parts besides layers and norms")
    if not is_usual_norm(body.norm):
        raise NotNative(f"its norm is a {type(body.norm).__name__}")
    for layer in body.layers:
        _check_layer(layer)


def head_weights(model: Any) -> Weights:
    """The head of a model."""
    return stacked([model.get_output_embeddings()], exact)


def layers(model: Any) -> Iterator[Sequence[BlockWeights]]:
    """A model's layers, one after the other, each packed when it is asked for."""
    for layer in model.base_model.layers:
        own, mlp = layer.self_attn, layer.mlp
        attention = BlockWeights(
            norm_weight(layer.input_layernorm),
            stacked([own.q_proj, own.k_proj, own.v_proj], exact),
            stacked([own.o_proj], exact),
            *head_norms(own),
        )
        yield attention, mlp_block(layer.post_attention_layernorm, mlp, exact)


def mlp_block(norm: nn.Module, mlp: Any, keep: Keep) -> BlockWeights:
    """A gated MLP. Gate and up projection are one matrix, a tile of outputs of each in turn: they
    are computed together."""
    gate, up = mlp.gate_proj, mlp.up_proj
    matrix, bias = in_turn(gate.weight.detach(), up.weight.detach()), stacked_bias([gate, up])
    if bias is not None:
        bias = in_turn(*bias[:, None].split(gate.out_features))[:, 0]
    return BlockWeights(norm_weight(norm), keep(matrix, bias), stacked([mlp.down_proj], keep))


def norm_weight(norm: nn.Module) -> Tensor:
    """The weight of a norm, float32."""
    weight: Tensor = norm.weight  # type: ignore[assignment]
    return weight.detach().float().contiguous()


def head_norms(attention: Any) -> tuple[Tensor | None, Tensor | None]:
    """Weights of the norms of an attention's queries and keys; None where there is none."""
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query, key = (None if norm is None else norm_weight(norm) for norm in norms)
    return query, key


def stacked(linears: Sequence[Any], keep: Keep) -> Weights:
    """Linear layers of one input as one matrix."""
    matrix = torch.cat([linear.weight.detach() for linear in linears])
    return keep(matrix, stacked_bias(linears))


def plain(matrix: Tensor) -> Weights:
    """A matrix in bfloat16 or float32 as it is."""
    return Weights(BFLOAT16 if matrix.dtype == torch.bfloat16 else FLOAT32, matrix)


def exact(matrix: Tensor, bias: Tensor | None) -> Weights:
    """Weights in bfloat16 where that loses nothing: half the memory to read for every token."""
    narrow = matrix.to(torch.bfloat16)
    bias = None if bias is None else bias.float().contiguous()
    if matrix.dtype == torch.bfloat16 or torch.equal(narrow.float(), matrix):
        return Weights(BFLOAT16, narrow.contiguous(), bias)
    return Weights(FLOAT32, matrix.contiguous(), bias)


def eight_bits(matrix: Tensor, bias: Tensor | None) -> Weights:
    """Weights in blocks of 32 8-bit numbers with a scale (Q8_0), the nearest to what they are;
    exactly where rows are no whole blocks."""
    elements, _ = _BLOCKS[Q8_0]
    if matrix.shape[1] % elements:
        return exact(matrix, bias)
    blocks = matrix.float().unflatten(1, (-1, elements))
    scales = blocks.abs().amax(2, keepdim=True) / _LARGEST
    codes = torch.where(scales > 0, blocks / scales, 0.0).round().to(torch.int8)
    rows = torch.cat([scales.half().view(torch.int8), codes], 2).view(torch.uint8)
    return Weights(Q8_0, rows.flatten(1), None if bias is None else bias.float().contiguous())


def _check_rope(config: Any) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in _STATIC_ROPE or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise NotNative(f"its rotary embedding is of the kind {kind}")
    if getattr(config, "no_rope_layers", None) and not all(config.no_rope_layers):
        raise NotNative("some of its layers have no rotary embedding")


def _check_layer(layer: nn.Module) -> None:
    parts = {name for name, _ in layer.named_children()}
    if parts != {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}:
        raise NotNative(f"its layers consist of {', '.join(sorted(parts))}")
    block: Any = layer.self_attn
    mlp: Any = layer.mlp
    known = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
    names = {name for name, child in block.named_children() if child is not None}
    if not names <= known or not {"q_proj", "o_proj"} <= names:
        raise NotNative(f"its attention consists of {', '.join(sorted(names))}")
    if not _is_silu(getattr(mlp, "act_fn", None)):
        raise NotNative("its MLP is not gated by SiLU")
    linears = [block.q_proj, block.k_proj, block.v_proj, block.o_proj]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if not all(type(linear) is nn.Linear for linear in linears):
        raise NotNative("its projections are no plain ones")
    named = (getattr(block, name, None) for name in ("q_norm", "k_norm"))
    norms = [norm for norm in named if norm is not None]
    if not all(map(is_usual_norm, [layer.input_layernorm, *norms])):
        raise NotNative("its norms are not RMS norms")
    if any(norm.weight.numel() != block.head_dim for norm in norms):
        raise NotNative("its norms of queries and keys reach over several heads")


def _is_silu(activation: object) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"


def in_turn(first: Tensor, second: Tensor) -> Tensor:
    """Rows of two matrices, a tile of each in turn."""
    padding = -len(first) % _TILE
    tiles = [F.pad(part, (0, 0, 0, padding)).unflatten(0, (-1, _TILE)) for part in (first, second)]
    return torch.stack(tiles, 1).flatten(0, 2)
