"""A random two-layer Llama and a byte tokenizer as a GGUF file. No downloads."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tiny_checkpoint import SPECIAL, byte_tokenizer, tiny_llama

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
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF's order of rotary pairs, within each head, from that of transformers."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_tokenizer(writer: GGUFWriter) -> None:
    vocab = byte_tokenizer().get_vocab()
    tokens = [*sorted(vocab, key=vocab.get), "ĠĠ"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")


def write_gguf(path: Path) -> Path:
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
