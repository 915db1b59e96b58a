"""A GGUF file becomes the same model and tokenizer, whatever the release of transformers."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from slipstream.core.errors import WeightsError
from slipstream.models.loading import load_target_parts
from slipstream.models.store.gguf import convert
from support.models.tiny_checkpoint import SPECIAL, tiny_llama
from support.models.tiny_gguf import write_gguf


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


def test_a_truncated_gguf_file_is_refused(gguf, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf.read_bytes()[:5000])
    with pytest.raises(WeightsError):
        convert(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(WeightsError):
        load_target_parts(str(broken))
