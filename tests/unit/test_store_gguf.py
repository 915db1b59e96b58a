"""A GGUF file becomes the same model and tokenizer, whatever the release of transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file
from transformers import AutoTokenizer

from slipstream.core.errors import WeightsError
from slipstream.models.causal import CausalModel
from slipstream.models.loading import load_model, load_target_parts
from slipstream.models.native import library
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.store.gguf import convert
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


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted(gguf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    convert(gguf, folder)
    return folder


def test_the_converted_weights_are_those_of_the_file_in_bf16(converted):
    weights = load_file(converted / "model.safetensors")
    for name, value in tiny_llama(vocab_size=260).state_dict().items():
        if name != "lm_head.weight":
            torch.testing.assert_close(weights[name], value.bfloat16(), rtol=0, atol=0)


def test_the_converted_tokenizer_splits_digits_and_knows_its_special_tokens(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.eos_token == SPECIAL[0]
    assert tokenizer.chat_template == "{{ messages }}"
    # The spaces before a digit are a piece of their own, so that they merge.
    assert tokenizer.tokenize("a  5") == ["a", "ĠĠ", "5"]
    for text in ("a  5", "café <|user|> 12\n\n3"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_gguf_file_loads_by_its_path_as_it_does_converted(gguf, converted):
    direct, kept = (load_target_parts(str(path)) for path in (gguf, converted))
    assert direct.tokenizer_hash == kept.tokenizer_hash
    for name, value in kept.model.state_dict().items():
        torch.testing.assert_close(direct.model.state_dict()[name], value, rtol=0, atol=0)


def test_a_truncated_gguf_file_is_refused(gguf, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf.read_bytes()[:5000])
    with pytest.raises(WeightsError):
        convert(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(WeightsError):
        load_target_parts(str(broken))


@pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
def test_native_code_reads_a_gguf_file_itself_and_agrees_with_transformers(gguf):
    loaded = load_model(str(gguf))
    assert isinstance(loaded.model, GgufSource)
    assert CausalModel(loaded.model).is_native  # which compares hidden states
    theirs = load_target_parts(str(gguf))
    assert loaded.tokenizer_hash == theirs.tokenizer_hash
    assert loaded.stop_token_ids == theirs.stop_token_ids
    assert load_model(str(gguf)).tokenizer.parts() == loaded.tokenizer.parts()
