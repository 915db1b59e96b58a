"""A draft shares the target's own parts: those of the whole model, bit for bit, layers unread."""

from functools import partial

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import WeightsError
from slipstream.models.format.architecture import EMBEDDING
from slipstream.models.glide import torch_parts as module
from slipstream.models.glide.load import load_parts, target_parts
from slipstream.models.loading import load_model
from slipstream.models.native.weights import Weights, as_float32
from slipstream.models.torch.arrays import as_array
from slipstream.models.torch.loading import load_target_parts
from support.models import tiny, tiny_checkpoint

RENAMED = "gpt-neox"
"""Its files name the head otherwise than the model does."""
SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}


def scaled():
    config = tiny_checkpoint.tiny_llama(context_length=256).config
    config.rope_parameters = SCALED
    return AutoModelForCausalLM.from_config(config)


FILES = {
    **{
        family: (partial(tiny.hf_model, family, vocab_size=264), {})
        for family in tiny.FAMILIES
        if family != RENAMED
    },
    "scaled rotary positions": (scaled, {}),
    "shards": (partial(tiny.hf_model, "qwen2", vocab_size=264), {"max_shard_size": "80KB"}),
}


@pytest.fixture(params=["", "off"], ids=["native", "torch"], autouse=True)
def engine(request, monkeypatch):
    """Native code where it computes, and torch."""
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)
    return request.param


@pytest.fixture
def checkpoint(tmp_path):
    return tiny_checkpoint.save_checkpoint(tmp_path / "tiny")


def whole_parts(name, dtype="float32"):
    loaded = load_target_parts(str(name), dtype=dtype)
    return target_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)


def assert_same(found, whole):
    numbers = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "tokenizer_hash")
    for name in (*numbers, "dtype", "device", "vocab_size", "hidden_size"):
        assert getattr(found, name) == getattr(whole, name)
    pairs = [*zip(arrays(found), arrays(whole), strict=True)]
    for ours, theirs in pairs[:2]:
        assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype
    for ours, theirs in pairs[2:]:
        np.testing.assert_array_max_ulp(ours, theirs)  # torch's own cosines are no nearer


def arrays(parts):
    """The embedding, the head's rows, and rotary factors."""
    own = parts.embedding
    table = as_array(own.matrix if isinstance(own, Weights) else own)
    return table, as_float32(as_array(every_row(parts))), *map(as_array, parts.rotary(100))


def every_row(parts):
    return parts.head_rows(np.arange(parts.vocab_size))


def forbid_whole(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("the whole model was loaded")

    monkeypatch.setattr(module, "load_target_parts", refused)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_parts_are_those_of_the_whole_model(tmp_path, monkeypatch, name, dtype):
    make, options = FILES[name]
    tiny_checkpoint.save_model(tmp_path, make(), **options)
    assert (len(list(tmp_path.glob("model-*.safetensors"))) > 2) is (name == "shards")
    whole = whole_parts(tmp_path, dtype)
    forbid_whole(monkeypatch)
    found = load_parts(str(tmp_path), dtype=dtype)
    assert_same(found.parts, whole)
    assert (found.model_id, found.context_length) == (tmp_path.name, 512)
    assert found.parts.tokenizer_hash == whole.tokenizer_hash


def test_a_tied_head_is_in_memory_once(checkpoint, engine):
    found = load_parts(str(checkpoint), dtype="float32").parts
    assert_same(found, whole_parts(checkpoint))
    for dtype in () if engine else ("float32", "bfloat16"):
        source = load_model(str(checkpoint), dtype=dtype).model
        found = target_parts(source)
        assert source.is_tied
        assert np.shares_memory(found.embedding.matrix, source.dense(EMBEDDING))
        assert np.array_equal(every_row(found), as_float32(found.embedding.matrix))


def without_layers(tensors):
    return {name: value for name, value in tensors.items() if ".layers." not in name}


def under_other_names(tensors):  # so that they are loaded whole
    return {name.removeprefix("model."): value for name, value in tensors.items()}


@pytest.mark.parametrize("change", [without_layers, under_other_names])
def test_layers_are_not_read_where_names_are_the_usual_ones(checkpoint, change):
    path, whole = checkpoint / "model.safetensors", whole_parts(checkpoint)
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    assert_same(load_parts(str(checkpoint), dtype="float32").parts, whole)


def test_a_family_whose_files_name_tensors_otherwise_is_loaded_whole(tmp_path):
    tiny_checkpoint.save_model(tmp_path, tiny.hf_model(RENAMED, vocab_size=264))
    found = load_parts(str(tmp_path), dtype="float32")
    assert_same(found.parts, whole_parts(tmp_path))
    assert found.context_length == 512


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_broken_file_or_embeddings_of_another_size_are_refused(checkpoint, is_cut):
    path = checkpoint / "model.safetensors"
    if is_cut:
        path.write_bytes(path.read_bytes()[:1000])
    else:
        tiny_checkpoint.change_config(checkpoint, vocab_size=300)
    with pytest.raises(WeightsError, match="can't be loaded" if is_cut else None):
        load_parts(str(checkpoint))
