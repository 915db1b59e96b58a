"""A checkpoint loads whole and as asked, or is refused with the reason. No pickles, no code."""

from contextlib import nullcontext

import pytest
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.core.errors import InvalidRequest, ModelError, ModelMismatch, WeightsError
from slipstream.models.loading import load_model, load_target_parts, require_same_tokenizer
from slipstream.models.target.causal import CausalModel
from slipstream.models.tokenizer import text_tokenizer
from slipstream.text.prompts import encode_prompt
from support.models.tiny_checkpoint import (
    byte_tokenizer,
    change_config,
    save_checkpoint,
    tiny_llama,
)

LOADERS = (load_model, load_target_parts)


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(tmp_path / "tiny")


def test_a_checkpoint_loads_with_the_weights_it_was_saved_with(checkpoint):
    loaded = load_target_parts(str(checkpoint), dtype="float32")
    for name, value in tiny_llama().state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], value, rtol=0, atol=0)
    assert (loaded.model_id, loaded.path) == ("tiny", checkpoint)
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())


@pytest.mark.parametrize("device", ["", "nowhere", "meta", "cuda:99"])
def test_a_device_that_can_not_be_used_is_refused(checkpoint, device):
    with pytest.raises(InvalidRequest, match=f"the device (is )?'{device}'"):
        load_target_parts(str(checkpoint), device=device)


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("length", [4, 1000])
def test_a_truncated_weights_file_is_refused(checkpoint, load, length):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(WeightsError, match="can't be loaded"):
        load(str(checkpoint))


def test_code_in_a_model_directory_does_not_run(checkpoint):
    (checkpoint / "evil.py").write_text("raise SystemExit('code of the model ran')")
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    change_config(checkpoint, model_type="evil", auto_map=classes)
    with pytest.raises(WeightsError, match="can't be loaded"):
        load_target_parts(str(checkpoint))


BROKEN = [
    ("config.json", '{"model_type": "t5"}', ModelMismatch, "of type t5"),
    ("config.json", "{", WeightsError, r"config\.json"),
    ("config.json", "[]", WeightsError, None),
    ("tokenizer.json", "{}", WeightsError, "tokenizer"),
]


@pytest.mark.parametrize(("name", "text", "error", "reason"), BROKEN)
def test_files_of_no_language_model_are_refused_alike(checkpoint, name, text, error, reason):
    (checkpoint / name).write_text(text)
    said = []
    for load in LOADERS:
        with pytest.raises(error, match=reason) as refused:
            load(str(checkpoint))
        said.append(str(refused.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("names", [["[PAD]"], ["[PAD]", "[MORE]"]])
@pytest.mark.parametrize("load", LOADERS)
def test_tokens_added_past_the_embedding_are_left_out(names, load, checkpoint, tmp_path):
    plain = load(str(checkpoint))
    folder = save_checkpoint(tmp_path / "padded")
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": names, "pad_token": names[-1]})
    tokenizer.save_pretrained(folder)
    loaded = load(str(folder))
    assert loaded.num_token_ids == plain.num_token_ids == 259
    assert loaded.tokenizer_hash == plain.tokenizer_hash
    text = text_tokenizer(loaded.tokenizer)
    assert max(text.encode(names[0], add_special_tokens=False)) < 259
    with pytest.raises(InvalidRequest, match="token id 259, not 0 to 258"):
        encode_prompt(text, [1, 259])


@pytest.mark.parametrize("load", LOADERS)
def test_a_tokenizer_with_more_tokens_than_the_model_or_a_bos_past_them_is_refused(load, tmp_path):
    folder = save_checkpoint(tmp_path / "small", vocab_size=200)
    with pytest.raises(ModelMismatch, match="up to id 258, but the model knows 200 tokens"):
        load(str(folder))
    folder = save_checkpoint(tmp_path / "bos")
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "[BOS]"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 259)]
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelMismatch, match="goes up to id 259, but the model knows 259"):
        load(str(folder))


def test_ids_of_no_token_end_and_pad_nothing(checkpoint):
    plain = load_model(str(checkpoint)).stop_token_ids
    change_config(checkpoint, eos_token_id=[*plain, 999], pad_token_id=4000)
    loaded = load_model(str(checkpoint))
    assert loaded.stop_token_ids == plain
    CausalModel(loaded.model)


def test_a_draft_that_numbers_its_tokens_differently_is_refused(tmp_path):
    target = load_target_parts(str(save_checkpoint(tmp_path / "target")))
    other = save_checkpoint(tmp_path / "other")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|more|>"])
    tokenizer.save_pretrained(other)
    tiny_llama(vocab_size=260).save_pretrained(other)
    draft = load_target_parts(str(other))
    require_same_tokenizer(target, target)
    with pytest.raises(ModelMismatch, match="numbers its tokens differently"):
        require_same_tokenizer(target, draft)


OTHERS = {
    **dict.fromkeys(("glm", "cohere", "ernie4_5", "hunyuan_v1_dense", "phimoe"), None),
    **{"gemma2": "attn_logit_softcapping", "gpt_oss": "sinks"},
    **{"diffllama": "hidden states differ", "stablelm": "can't run over our cache"},
}


@pytest.mark.parametrize("family", OTHERS)
def test_attention_of_another_form_is_computed_as_it_is_or_refused_in_a_sentence(family):
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, vocab_size=200, **heads, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reason = OTHERS[family]
    with pytest.raises(ModelError, match=reason) if reason else nullcontext():
        CausalModel(model, engine="torch")  # which compares it
