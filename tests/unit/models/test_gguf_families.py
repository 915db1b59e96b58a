"""A GGUF file of each architecture is the model that it was made of, by transformers itself."""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from slipstream.core.errors import WeightsError
from slipstream.models.format.resolve import convert
from slipstream.models.loading import causal_model, load_model
from slipstream.models.native import library
from slipstream.models.torch.loading import load_target_parts
from support.models import tiny, tiny_gguf
from support.models.families import SIZES, family_model
from support.models.tiny_checkpoint import SPECIAL
from support.models.tiny_gguf import add_field, finish, interleaved, write_tokenizer

pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
VOCAB = 260
TOKENS = [(at * 37 + 5) % 259 for at in range(70)]  # more than any window here
PLAIN = {"rope.freq_base": 10000.0}
SCALES = {"embedding_scale": 3.3, "logit_scale": 1.7, "residual_scale": 0.6, "attention.scale": 0.4}
PART = {"rope.dimension_count": 12, "rope.scaling.original_context_length": 256}
LOCAL = {
    **{"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    **{"attention.sliding_window": 25, "attention.sliding_window_pattern": 3},
}
FACTS = {
    **{"context_length": "max_position_embeddings", "embedding_length": "hidden_size"},
    **{"feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers"},
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
FILES = {
    "llama": ("llama", {}, PLAIN),
    "llama with windows": ("mistral", {}, {**PLAIN, "attention.sliding_window": 21}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, PLAIN),
    "qwen2": ("qwen2", {"use_sliding_window": False}, PLAIN),
    "qwen3": ("qwen3", {"use_sliding_window": False, "layer_types": None}, PLAIN),
    "smollm3": ("smollm3", {"use_sliding_window": False}, {"rope.freq_base": 2000000.0}),
    "gemma": ("gemma", {}, PLAIN),
    "granite": ("granite", {}, {**PLAIN, **SCALES, "rope.scaling.finetuned": True}),
    "olmo2": ("olmo2", {}, PLAIN),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 24, "sliding_window_pattern": 3}, LOCAL),
    "phi3": ("phi3", {}, {**PLAIN, **PART, "attention.sliding_window": 33}),
}


def write(path, name):
    """A file of a family's tiny model, by gguf's own names of its tensors."""
    family, options, fields = FILES[name]
    model = family_model(family, **{"vocab_size": VOCAB, **options})
    config, arch = model.config, name.split(" ")[0]
    writer = gguf.GGUFWriter(path, arch)
    facts = {field: SIZES[ours] for field, ours in FACTS.items()}
    facts["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    if getattr(config, "head_dim", None):
        facts["attention.key_length"] = facts["attention.value_length"] = config.head_dim
    for field, value in {**facts, **fields}.items():
        add_field(writer, f"{arch}.{field}", value)
    write_tokenizer(writer)
    for tensor, values in tensors(model, arch):
        writer.add_tensor(tensor, np.ascontiguousarray(values))
    if name == "phi3":
        for kind in ("short", "long"):
            factors = np.array(config.rope_parameters[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    finish(writer)
    return path, model


def tensors(model, arch):
    """Names in files and values of a model's tensors, as converters write them."""
    kind = next(at for at, its in gguf.MODEL_ARCH_NAMES.items() if its == arch)
    names = gguf.get_tensor_name_map(kind, SIZES["num_hidden_layers"])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for name, weight in model.named_parameters():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values, which = weight.detach().numpy(), heads.get(name.split(".")[-2])
        if which and arch in ("llama", "granite", "smollm3"):
            values = interleaved(values, SIZES[which])
        if name.endswith("norm.weight") and arch.startswith("gemma"):
            values = values + np.float32(1)
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), values


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_model_that_it_was_made_of(name, tmp_path):
    path, model = write(tmp_path / "own.gguf", name)
    expected = tiny.hf_logits(model, TOKENS)
    for dtype, limit in (("float32", 1e-4), ("auto", 2e-2)):
        loaded = causal_model(load_model(str(path), dtype=dtype).model)
        assert loaded.engine.startswith("native")
        error = np.linalg.norm(tiny.whole(loaded, TOKENS)[1] - expected) / np.linalg.norm(expected)
        assert error < limit, dtype
    by_torch = tiny.hf_logits(load_target_parts(str(path), dtype="float32").model, TOKENS)
    np.testing.assert_allclose(by_torch, expected, rtol=0, atol=2e-4)


NEEDED = ["granite.attention.scale", "granite.rope.scaling.finetuned"]


@pytest.mark.parametrize("field", [*NEEDED, "gemma3.attention.sliding_window"])
def test_what_a_family_can_not_do_without_is_refused_at_nothing(field, tmp_path):
    name, _, own = field.partition(".")
    family, options, fields = FILES[name]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(WeightsError, match=f"{field} of"):
        patch.setitem(FILES, name, (family, options, {**fields, own: type(fields[own])(0)}))
        load_model(str(write(tmp_path / "own.gguf", name)[0]))


def test_phi_3_without_the_factors_that_its_context_needs_is_refused(tmp_path):
    more = {"phi3.rope.scaling.original_context_length": 64}
    path = tiny_gguf.write(tmp_path / "own.gguf", lambda _: "F32", "phi3", more=more)
    with pytest.raises(WeightsError, match=r"lack rope_factors_short\.weight"):
        load_model(str(path))


KIND, FACTOR = "llama.rope.scaling.type", "llama.rope.scaling.factor"
FACTORS = {f"rope_factors_{kind}.weight": np.full(32, 2, np.float32) for kind in ("short", "long")}
REFUSED = {
    "a tensor rope_factors_long.weight, which is not supported": FACTORS,
    "lack rope_factors_short.weight": {KIND: "longrope"},
    "rope.scaling.factor of 4.0": {KIND: "longrope", FACTOR: 4.0, **FACTORS},
}


@pytest.mark.parametrize("words", REFUSED)
def test_two_sets_of_rotary_factors_are_those_of_longrope(words, tmp_path):
    path = tiny_gguf.write(tmp_path / "odd.gguf", lambda _: "F32", more=REFUSED[words])
    with pytest.raises(WeightsError, match=words):
        load_model(str(path))


def test_two_sets_are_read_for_longrope(tmp_path):
    own = {KIND: "longrope", **FACTORS}
    path = tiny_gguf.write(tmp_path / "own.gguf", lambda _: "F32", more=own)
    assert load_model(str(path)).model.rotaries[0].inv_freq[0] == 0.5


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A folder made of a file, and the model that this was made of."""
    path, model = write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama")
    convert(path, path.parent / "converted")
    return path.parent / "converted", model


def test_the_converted_weights_are_those_of_the_file_in_bf16(converted):
    folder, model = converted
    weights = load_file(folder / "model.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value.bfloat16(), rtol=0, atol=0)


def test_the_converted_tokenizer_splits_digits_and_knows_its_special_tokens(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted[0])
    assert tokenizer.eos_token == SPECIAL[0]
    assert tokenizer.chat_template == "{{ messages }}"
    # The spaces before a digit are a piece of their own, so that they merge.
    assert tokenizer.tokenize("a  5") == ["a", "ĠĠ", "5"]
    for text in ("a  5", "café <|user|> 12\n\n3"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
