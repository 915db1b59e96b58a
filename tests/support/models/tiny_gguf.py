"""Small GGUF files of random weights, in any mixture of types."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

from support.models.tiny_checkpoint import SPECIAL, byte_tokenizer, tiny_llama

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def gguf_name(name: str) -> str:
    """A tensor's name in GGUF files, from transformers'."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's order of rotary pairs, within each head, from that of transformers."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


HIDDEN, MLP, HEADS, KEY_HEADS, LAYERS, VOCAB = 256, 512, 4, 2, 2, 260
_HEAD_DIM = {"qwen3": 128}
"""Elements of a head where they are not those of the hidden state."""
_SUPER = {"Q4_K": (144, slice(0, 4), 5e-4), "Q5_K": (176, slice(0, 4), 2e-4)}
_SUPER["Q6_K"] = (210, slice(208, 210), 1e-4)
"""Bytes of a block of 256, where its scales are, and how large they are here."""

TypeOf = Callable[[str], str]
"""The type of a matrix, by its name without the layer."""


def random_blocks(kind: str, rows: int, columns: int, noise: np.random.Generator) -> np.ndarray:
    """Weights of a type [rows, bytes]; those of F32 are [rows, columns]."""
    if kind not in _SUPER:
        values = noise.standard_normal((rows, columns), dtype=np.float32) * 0.08
        return values if kind == "F32" else quants.quantize(values, GGMLQuantizationType[kind])
    size, where, scale = _SUPER[kind]
    blocks = noise.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    scales = (noise.random((rows, columns // 256, 2)) * scale).astype(np.float16)
    if where.start == 0:
        scales[..., 1] = scales[..., 0] * 7.5  # so that weights are about zero
    blocks[..., where] = scales.view(np.uint8)[..., : where.stop - where.start]
    return blocks.reshape(rows, -1)


def add_field(writer: GGUFWriter, name: str, value: Any) -> None:
    """Add a field in the type of its value."""
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


def write_tokenizer(writer: GGUFWriter, pre: str = "smollm") -> None:
    """A token for every byte."""
    vocab = byte_tokenizer().get_vocab()
    tokens = [*sorted(vocab, key=vocab.get), "ĠĠ"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def write(
    path: Path,
    type_of: TypeOf,
    family: str = "llama",
    seed: int = 0,
    *,
    fields: Mapping[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A file of a family, with further fields and tensors. The embedding, which is the head too, is
    `token_embd`."""
    noise = np.random.default_rng(seed)
    writer = GGUFWriter(path, family)
    dim = _HEAD_DIM.get(family, HIDDEN // HEADS)
    _write_facts(writer, dim)
    write_tokenizer(writer)
    for name, value in (fields or {}).items():
        writer.kv_data[0].pop(name, None)
        add_field(writer, name, value)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    for name, (rows, columns) in _matrices(dim).items():
        kind = type_of(name.split(".")[-1])
        values = random_blocks(kind, rows, columns, noise)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=GGMLQuantizationType[kind])
    for name, (size, mean) in _vectors(family, dim).items():
        values = mean + 0.2 * noise.standard_normal(size, dtype=np.float32)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_facts(writer: GGUFWriter, dim: int) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(VOCAB)


def _matrices(dim: int) -> dict[str, tuple[int, int]]:
    layer = {
        "attn_q": (HEADS * dim, HIDDEN),
        "attn_k": (KEY_HEADS * dim, HIDDEN),
        "attn_v": (KEY_HEADS * dim, HIDDEN),
        "attn_output": (HIDDEN, HEADS * dim),
        "ffn_gate": (MLP, HIDDEN),
        "ffn_up": (MLP, HIDDEN),
        "ffn_down": (HIDDEN, MLP),
    }
    all_layers = {f"blk.{at}.{name}": size for at in range(LAYERS) for name, size in layer.items()}
    return {"token_embd": (VOCAB, HIDDEN), **all_layers}


def _vectors(family: str, dim: int) -> dict[str, tuple[int, float]]:
    """Sizes of norms and biases, and their means."""
    layer = {"attn_norm.weight": (HIDDEN, 1.0), "ffn_norm.weight": (HIDDEN, 1.0)}
    if family == "qwen2":
        layer |= {"attn_q.bias": (HEADS * dim, 0.0)}
        layer |= {f"attn_{part}.bias": (KEY_HEADS * dim, 0.0) for part in "kv"}
    if family == "qwen3":
        layer |= {f"attn_{part}_norm.weight": (dim, 1.0) for part in "qk"}
    all_layers = {f"blk.{at}.{name}": size for at in range(LAYERS) for name, size in layer.items()}
    return {"output_norm.weight": (HIDDEN, 1.0), **all_layers}


def write_gguf(path: Path) -> Path:
    """`tiny_llama` with its weights as they are."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(260)
    write_tokenizer(writer)
    for name, value in tiny_llama(vocab_size=260).state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        array = value.numpy()
        writer.add_tensor(gguf_name(name), interleaved(array, heads) if heads else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
