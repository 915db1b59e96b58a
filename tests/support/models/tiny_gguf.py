"""Small GGUF files of random weights, in any mixture of types."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants

from support.models.tiny_checkpoint import SPECIAL, byte_tokenizer


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's order of rotary pairs, within each head, from that of transformers."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


HIDDEN, MLP, HEADS, KEY_HEADS, LAYERS, VOCAB = 256, 512, 4, 2, 2, 260
_COMMON = {"context_length": 128, "layer_norm_rms_eps": 1e-6, "rope_freq_base": 10000.0}
_HEAD_DIM = {"qwen3": 128}
"""Elements of a head where they are not those of the hidden state."""
_SCALES = {
    **{"Q2_K": (80, 5e-3, 1.5), "Q4_K": (0, 5e-4, 7.5), "Q5_K": (0, 2e-4, 15.5)},
    **{"Q3_K": (108, 1e-3, None), "Q6_K": (208, 1e-4, None)},
    **{"IQ4_NL": (0, 1e-3, None), "IQ4_XS": (0, 5e-5, None)},
}
"""Types that the gguf package does not round to: where a block's scale is, how large it is here,
and how much larger a minimum is, so that weights are about zero."""

TypeOf = Callable[[str], str]
"""The type of a matrix, by its name without the layer."""


def random_blocks(kind: str, rows: int, columns: int, noise: np.random.Generator) -> np.ndarray:
    """Weights of a type [rows, bytes]; those of F32 are [rows, columns]."""
    if kind not in _SCALES:
        values = noise.standard_normal((rows, columns), dtype=np.float32) * 0.08
        return values if kind == "F32" else quants.quantize(values, GGMLQuantizationType[kind])
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    first, scale, ratio = _SCALES[kind]
    blocks = noise.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    scales = (noise.random((*blocks.shape[:2], 1)) * scale).astype(np.float16)
    numbers = [scales] if ratio is None else [scales, scales * np.float16(ratio)]
    for at, number in enumerate(numbers):
        blocks[..., first + 2 * at : first + 2 * at + 2] = number.view(np.uint8)
    return blocks.reshape(rows, -1)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_field(writer: GGUFWriter, name: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


def write_tokenizer(writer: GGUFWriter, pre: str = "smollm") -> None:
    """A token for every byte."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    for name, value in padded(0).items():
        add_field(writer, name, value)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def padded(count: int) -> dict[str, list[Any]]:
    """Fields of tokens for an embedding with so many more rows, which names fill up."""
    vocab = byte_tokenizer().get_vocab()
    tokens = [*sorted(vocab, key=vocab.get), "ĠĠ", *(f"[PAD{VOCAB + at}]" for at in range(count))]
    types = [3] * len(SPECIAL) + [1] * (VOCAB - len(SPECIAL)) + [5] * count
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def write(
    path: Path,
    type_of: TypeOf,
    family: str = "llama",
    hidden: int = HIDDEN,
    *,
    is_tied: bool = True,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """A file of a family, with further fields and tensors. The embedding is `token_embd`, of which
    the head, where it is not the embedding itself, is a copy. Of what is `more`, arrays are
    tensors, and all others fields."""
    noise = np.random.default_rng(0)
    writer = GGUFWriter(path, family)
    dim = _HEAD_DIM.get(family, hidden // HEADS)
    sizes = {"embedding_length": hidden, "block_count": LAYERS, "feed_forward_length": MLP}
    heads = {"head_count": HEADS, "head_count_kv": KEY_HEADS, "vocab_size": VOCAB}
    dims = dict.fromkeys(("key_length", "value_length", "rope_dimension_count"), dim)
    for name, value in (_COMMON | sizes | heads | dims).items():
        getattr(writer, f"add_{name}")(value)
    write_tokenizer(writer)
    for name, value in (more or {}).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(name, value.astype(np.float32))
        else:
            writer.kv_data[0].pop(name, None)
            add_field(writer, name, value)
    num_tokens = len((more or {}).get("tokenizer.ggml.tokens", range(VOCAB)))
    for name, (rows, columns) in _matrices(dim, hidden, num_tokens).items():
        kind = type_of(name.split(".")[-1])
        values = random_blocks(kind, rows, columns, noise)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=GGMLQuantizationType[kind])
        if name == "token_embd" and not is_tied:
            writer.add_tensor("output.weight", values, raw_dtype=GGMLQuantizationType[kind])
    for name, (size, mean) in _vectors(family, dim, hidden).items():
        values = mean + 0.2 * noise.standard_normal(size, dtype=np.float32)
        writer.add_tensor(name, values.astype(np.float32))
    finish(writer)
    return path


def _matrices(dim: int, hidden: int, num_tokens: int) -> dict[str, tuple[int, int]]:
    keys = {f"attn_{part}": (KEY_HEADS * dim, hidden) for part in "kv"}
    heads = {"attn_q": (HEADS * dim, hidden), **keys, "attn_output": (hidden, HEADS * dim)}
    inner = {f"ffn_{part}": (MLP, hidden) for part in ("gate", "up")}
    layer = {**heads, **inner, "ffn_down": (hidden, MLP)}
    all_layers = {f"blk.{at}.{name}": size for at in range(LAYERS) for name, size in layer.items()}
    return {"token_embd": (num_tokens, hidden), **all_layers}


def _vectors(family: str, dim: int, hidden: int) -> dict[str, tuple[int, float]]:
    """Sizes of norms and biases, and their means."""
    layer = {"attn_norm.weight": (hidden, 1.0), "ffn_norm.weight": (hidden, 1.0)}
    if family == "qwen2":
        layer |= {"attn_q.bias": (HEADS * dim, 0.0)}
        layer |= {f"attn_{part}.bias": (KEY_HEADS * dim, 0.0) for part in "kv"}
    if family == "qwen3":
        layer |= {f"attn_{part}_norm.weight": (dim, 1.0) for part in "qk"}
    all_layers = {f"blk.{at}.{name}": size for at in range(LAYERS) for name, size in layer.items()}
    return {"output_norm.weight": (hidden, 1.0), **all_layers}
