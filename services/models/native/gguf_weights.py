"""Weights in the blocks of a GGUF file, as the native forward takes them: none is dequantised."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from slipstream.models.native import weights
from slipstream.models.native.library import NotNative, library
from slipstream.models.native.weights import BlockWeights, Weights, exact, in_turn
from slipstream.models.store.gguf_checkpoint import GgufCheckpoint, Rows

_KINDS = {
    "Q4_0": weights.Q4_0,
    "Q4_1": weights.Q4_1,
    "Q8_0": weights.Q8_0,
    "Q4_K": weights.Q4_K,
    "Q6_K": weights.Q6_K,
}
_PLAIN = {"F32", "F16", "BF16"}


def check_types(checkpoint: GgufCheckpoint) -> None:
    """Raises `NotNative` for weights of a type without kernels, or of several types where a
    product needs one."""
    names = ["model.embed_tokens"]
    if not checkpoint.config["tie_word_embeddings"]:
        names.append("lm_head")
    for at in range(checkpoint.config["num_hidden_layers"]):
        attention, mlp = (f"model.layers.{at}.{part}" for part in ("self_attn", "mlp"))
        together = [[f"{attention}.q_proj", f"{attention}.k_proj"], [f"{attention}.v_proj"]]
        together += [[f"{attention}.o_proj"], [f"{mlp}.gate_proj", f"{mlp}.up_proj"]]
        for stack in (*together, [f"{mlp}.down_proj"]):
            types = {checkpoint.type_of(f"{name}.weight") for name in stack}
            if len(types) > 1:
                raise NotNative(f"{' and '.join(stack)} are of the types {', '.join(types)}")
            names += stack
    for name in names:
        kind = checkpoint.type_of(f"{name}.weight")
        if kind not in (*_KINDS, *_PLAIN):
            raise NotNative(f"{name} has weights of type {kind}, which have no native kernels")


def embedding(checkpoint: GgufCheckpoint) -> Weights:
    """The embedding [vocab, d]."""
    return _kept(checkpoint.rows("model.embed_tokens.weight"))


def head(checkpoint: GgufCheckpoint) -> Weights:
    """The head, which is the embedding where there is no other."""
    is_tied = checkpoint.config["tie_word_embeddings"]
    return embedding(checkpoint) if is_tied else _matrix(checkpoint, ["lm_head"])


def norm(checkpoint: GgufCheckpoint, name: str) -> Tensor:
    """The weight of a norm, float32."""
    return checkpoint.rows(f"{name}.weight").values.float().contiguous()


def layers(checkpoint: GgufCheckpoint) -> Iterator[Sequence[BlockWeights]]:
    """A model's layers, one after the other, each read when it is asked for."""
    for at in range(checkpoint.config["num_hidden_layers"]):
        yield _attention(checkpoint, f"model.layers.{at}"), _mlp(checkpoint, f"model.layers.{at}")


def dense(rows: Rows, dtype: torch.dtype) -> Tensor:
    """A tensor's weights one by one."""
    if rows.type in _PLAIN:
        return rows.values.to(dtype)
    kept = _kept(rows)
    out = torch.empty(len(kept.matrix), kept.num_inputs)
    library().slipstream_dequantise(kept.kind, kept.matrix.data_ptr(), out.numel(), out.data_ptr())
    return out.to(dtype)


def _attention(checkpoint: GgufCheckpoint, layer: str) -> BlockWeights:
    own = f"{layer}.self_attn"
    queries, keys, values = (f"{own}.{part}_proj" for part in "qkv")
    types = [checkpoint.rows(f"{name}.weight").type for name in (queries, keys, values)]
    into, apart = [queries, keys, values], None
    if types[2] != types[0]:  # many files spend more bits on values
        into, apart = [queries, keys], _matrix(checkpoint, [values])
    query_norm, key_norm = (
        norm(checkpoint, name) if checkpoint.has(f"{name}.weight") else None
        for name in (f"{own}.q_norm", f"{own}.k_norm")
    )
    return BlockWeights(
        norm(checkpoint, f"{layer}.input_layernorm"),
        _matrix(checkpoint, into),
        _matrix(checkpoint, [f"{own}.o_proj"]),
        query_norm,
        key_norm,
        apart,
    )


def _mlp(checkpoint: GgufCheckpoint, layer: str) -> BlockWeights:
    gate, up = (checkpoint.rows(f"{layer}.mlp.{part}_proj.weight") for part in ("gate", "up"))
    return BlockWeights(
        norm(checkpoint, f"{layer}.post_attention_layernorm"),
        _kept(Rows(gate.type, in_turn(gate.values, up.values))),
        _matrix(checkpoint, [f"{layer}.mlp.down_proj"]),
    )


def _matrix(checkpoint: GgufCheckpoint, names: Sequence[str]) -> Weights:
    """Matrices of one input and type, stacked."""
    parts = [checkpoint.rows(f"{name}.weight") for name in names]
    biases = [f"{name}.bias" for name in names if checkpoint.has(f"{name}.bias")]
    bias = torch.cat([checkpoint.rows(name).values.float() for name in biases]) if biases else None
    return _kept(Rows(parts[0].type, torch.cat([part.values for part in parts])), bias)


def _kept(rows: Rows, bias: Tensor | None = None) -> Weights:
    if rows.type in _PLAIN:
        return exact(rows.values if rows.type == "BF16" else rows.values.float(), bias)
    return Weights(_KINDS[rows.type], rows.values, bias)
