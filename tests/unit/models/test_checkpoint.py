"""A checkpoint loads whole and as asked, by native code with the bits of the model in memory, or is
refused with the reason. No pickles, no code."""

import json
import runpy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import processors

from slipstream.core.errors import InvalidRequest, ModelError, ModelMismatch, WeightsError
from slipstream.models import reference
from slipstream.models.format import tokenizer
from slipstream.models.glide.load import target_parts
from slipstream.models.loaded import require_same_numbering
from slipstream.models.loading import load_model
from slipstream.models.machine import Measurements
from slipstream.models.native import library
from slipstream.models.native.checkpoint import Checkpoint
from slipstream.models.native.weights import as_float32
from slipstream.models.reference import record_key
from slipstream.models.torch import transformers_model
from slipstream.models.torch.loading import load_target_parts
from slipstream.text.prompts import encode_prompt
from slipstream.text.token_bytes import same_numbering
from support.commands import ROOT
from support.models import tiny
from support.models.in_memory import causal_model
from support.models.tiny_checkpoint import (
    WEIGHTS,
    byte_tokenizer,
    change_config,
    change_weights,
    save_checkpoint,
    save_model,
    text_tokenizer,
)

LOADERS = (load_model, load_target_parts)
needs_native = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine on which nothing has been compared, and a cache of its own."""
    machine = Measurements(None)
    monkeypatch.setattr(reference, "this_machine", lambda: machine)
    monkeypatch.setattr(tokenizer, "tokenizers_dir", lambda: tmp_path / "kept")
    return machine


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(tmp_path / "tiny")


def saved(folder, family, **options):
    return save_model(folder, tiny.hf_model(family, vocab_size=264), **options)


@needs_native
def test_shards_are_read_as_one(tmp_path):
    whole = saved(tmp_path / "whole", "llama")
    parts = saved(tmp_path / "parts", "llama", max_shard_size="100KB")
    assert len(list(parts.glob("*.safetensors"))) > 2
    both = [causal_model(load_model(str(at)).model) for at in (whole, parts)]
    assert all(map(np.array_equal, *map(computed, both)))


@needs_native
def test_a_tied_model_whose_head_differs_has_both(checkpoint):
    tensors = load_file(checkpoint / WEIGHTS)
    change_weights(checkpoint, **{"lm_head.weight": tensors["model.embed_tokens.weight"].flip(0)})
    ours = target_parts(load_model(str(checkpoint), dtype="float32").model)
    theirs = target_parts(load_target_parts(str(checkpoint), dtype="float32").model)
    own_head, their_head = (of.head_rows(np.arange(ours.vocab_size)) for of in (ours, theirs))
    embedding = ours.embedding.matrix
    assert np.array_equal(embedding, theirs.embedding) and np.array_equal(own_head, their_head)
    assert not np.array_equal(own_head, embedding)


def test_models_that_are_loaded_at_once_are_tied_as_one_alone_is(checkpoint):
    with ThreadPoolExecutor(8) as threads:
        loaded = threads.map(load_target_parts, [str(checkpoint)] * 16)
    models = [one.model for one in loaded]
    assert all(it.get_output_embeddings().weight is it.model.embed_tokens.weight for it in models)


def computed(model):
    return tiny.whole(model, tiny.tokens(60))


@needs_native
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model.norm.weight", torch.ones(7), r"norm\.weight has the shape \[7\], but .* \[32\]"),
        ("model.layers.1.mlp.up_proj.weight", None, r"lack .*layers\.1\.mlp\.up_proj\.weight \(1 "),
    ],
)
def test_lost_and_misshapen_tensors_are_refused_by_name(checkpoint, name, value, reason):
    change_weights(checkpoint, **{name: value})
    with pytest.raises(WeightsError, match=reason):
        load_model(str(checkpoint))
    with pytest.raises(WeightsError, match=None if value is not None else name):
        load_target_parts(str(checkpoint))


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
FOREIGN = [(DYNAMIC, {}), ({"hidden_act": "gelu"}, {}), ({}, {"dtype": "float16"})]


@pytest.mark.parametrize(("changes", "options"), FOREIGN)
def test_what_native_code_can_not_compute_is_transformers(checkpoint, changes, options):
    change_config(checkpoint, **changes)
    assert type(load_model(str(checkpoint), **options).model).__name__ == "LlamaForCausalLM"


@pytest.mark.gpu
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=needs_native), "cuda"])
def test_weights_are_compared_with_transformers_once(device, checkpoint, monkeypatch):
    calls, compute = [], transformers_model.computed_states
    counted = lambda *given: calls.append(given) or compute(*given)  # noqa: E731
    monkeypatch.setattr(transformers_model, "computed_states", counted)

    def start(numerics="auto"):
        for _ in range(2):
            loaded = load_model(str(checkpoint), device=device)
            causal_model(loaded.model, numerics=numerics, path=loaded.path)
        return len(calls)

    assert start() == 1
    change_weights(checkpoint, **{"model.norm.weight": torch.full((32,), 0.5)})
    assert start() == 2
    change_config(checkpoint, rms_norm_eps=1e-4)
    assert start() == 3
    assert start("fast") == (3 if device == "cpu" else 4)  # where native code is the same
    monkeypatch.setattr("transformers.configuration_utils.__version__", "9.9")
    assert start() == (3 if device == "cpu" else 5)


@needs_native
def test_a_forward_that_differs_is_refused_each_time(checkpoint, monkeypatch):
    monkeypatch.setattr(Checkpoint, "vector", lambda self, name: 2 * as_float32(self.dense(name)))
    for _ in range(2):
        with pytest.raises(ModelError, match="hidden states differ from transformers' own"):
            causal_model(load_model(str(checkpoint)).model)


@needs_native
@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2-135m-q4_1"])
def test_known_weights_have_the_recorded_forward_and_transformers_has_it_nearly(name, real_model):
    key, own = runpy.run_path(str(ROOT / ".ci/forwards.py"))["entry"](name, "auto")
    known = json.loads(reference.FORWARDS.read_text())[key]
    assert own["forward_sha256"] == known["forward_sha256"]
    assert own["differences"].keys() == known["differences"].keys()


@needs_native
def test_a_forward_is_held_to_the_digest_of_its_weights(checkpoint, monkeypatch):
    source = load_model(str(checkpoint)).model
    digest, key = reference.forward_digest(causal_model(source).sample()), record_key(source)
    monkeypatch.setattr(reference, "this_machine", lambda: Measurements(None))
    monkeypatch.setattr(transformers_model, "computed_states", lambda *_: pytest.fail("compared"))
    known = {key: {"forward_sha256": digest}}
    monkeypatch.setattr(reference, "known_forwards", lambda: known)
    causal_model(load_model(str(checkpoint)).model)
    known[key] = {"forward_sha256": digest[::-1]}
    with pytest.raises(ModelError, match="gives other numbers than were recorded"):
        causal_model(load_model(str(checkpoint)).model)
    change_weights(checkpoint, **{"model.norm.weight": torch.full((32,), 0.5)})
    with pytest.raises(pytest.fail.Exception, match="compared"):  # other weights are others
        causal_model(load_model(str(checkpoint)).model)


@pytest.mark.parametrize("device", ["", "nowhere", "meta", "cuda:99"])
def test_a_device_that_can_not_be_used_is_refused(checkpoint, device):
    with pytest.raises(InvalidRequest, match=f"the device (is )?'{device}'"):
        load_target_parts(str(checkpoint), device=device)


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
    text = loaded.tokenizer
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
    change_config(checkpoint, eos_token_id=[*plain, 999, -1], pad_token_id=4000)
    loaded = load_model(str(checkpoint))
    assert loaded.stop_token_ids == plain
    causal_model(loaded.model)


SENTENCE = "token {} is {} of the draft small, but {} of the target large"
COUNTS = "the draft small has 259 tokens before those that were added, but the target large 260"
NUMBERINGS = [
    ({}, {"added": ("<a>",)}, ()),
    ({"added": ("<a>", "<b>")}, {"added": ("<a>",)}, ()),
    ({"added": ("<a>", "<b>")}, {"added": ("<a>", "<c>")}, (260, "'<c>'", "'<b>'")),
    ({"more": ("aa", "bb")}, {"more": ("aa", "cc"), "added": ("bb",)}, (260, "'cc'", "'bb'")),
    ({"added": ("<a>",)}, {"more": ("aa",), "added": ("<a>",)}, (259, "'aa'", "'<a>'")),
    ({"more": ("aa",)}, {}, (259, "none", "'aa'")),
    ({"more": ("<a>",)}, {"added": ("<a>",)}, COUNTS),
]


@pytest.mark.parametrize("case", NUMBERINGS)
def test_a_draft_whose_ids_are_other_tokens_is_refused_with_the_first(case, checkpoint):
    ours, theirs, fault = case
    own, other = map(text_tokenizer, [byte_tokenizer(**ours), byte_tokenizer(**theirs)])
    small = replace(load_model(str(checkpoint)), tokenizer=other, model_id="small")
    assert same_numbering(own.table.numbering, other.table.numbering) is (not fault)
    if not fault:
        require_same_numbering("large", own, small)
        return
    with pytest.raises(ModelMismatch) as refused:
        require_same_numbering("large", own, small)
    assert str(refused.value) == (fault if fault is COUNTS else SENTENCE.format(*fault))
