"""Each family's folder is read as transformers reads it, and nothing in it is left out silently."""

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, SiglipVisionConfig

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models import reference
from slipstream.models.format import tokenizer
from slipstream.models.format.architecture import parse
from slipstream.models.format.families import FORMS, account_fields, defaults, fields_of
from slipstream.models.format.rope import ORIGINAL
from slipstream.models.loading import load_model
from slipstream.models.machine import Measurements
from slipstream.models.native import library
from slipstream.models.native.checkpoint import Checkpoint
from slipstream.models.native.library import NotNative
from slipstream.models.torch.loading import load_target_parts
from support.models import families, tiny
from support.models.families import FIELD_CASES, OPTIONS, SIZES, family_model
from support.models.in_memory import causal_model
from support.models.tiny_checkpoint import change_config, save_model

has_kernels = library.PATH.is_file()
needs_kernels = pytest.mark.skipif(not has_kernels, reason="no native kernels were built")
PUBLISHED = json.loads((Path(families.__file__).parent / "published_configs.json").read_text())


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """A machine on which nothing has been compared, and a cache of its own."""
    machine = Measurements(None)
    monkeypatch.setattr(reference, "this_machine", lambda: machine)
    monkeypatch.setattr(tokenizer, "tokenizers_dir", lambda: tmp_path / "kept")


def logits(model):
    return tiny.whole(model, tiny.tokens(60))[1]


def add_tensor(folder, name):
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: torch.ones(3)}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", FORMS)
def test_defaults_are_those_of_transformers(family):
    theirs = AutoConfig.for_model(family).to_dict()
    assert parse({"model_type": family}) == parse(theirs)


STORED = (torch.float32, torch.bfloat16, torch.float16)


@needs_kernels
@pytest.mark.parametrize(("family", "stored"), list(zip(FORMS, STORED * 9, strict=False)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_gives_the_bits_of_the_model_in_memory(tmp_path, family, stored, dtype):
    folder = save_model(tmp_path, family_model(family, stored, vocab_size=264))
    read, loaded = load_model(str(folder), dtype=dtype), load_target_parts(str(folder), dtype=dtype)
    assert isinstance(read.model, Checkpoint)
    names = ("model_id", "tokenizer_hash", "path", "num_token_ids", "stop_token_ids")
    assert all(getattr(read, name) == getattr(loaded, name) for name in names)
    models = [causal_model(at.model) for at in (read, loaded)]
    assert models[0].engine.startswith("native")
    for name in ("dtype", "layout", "vocab_size", "context_length", "weight_bytes", "hidden_size"):
        assert getattr(models[0], name) == getattr(models[1], name), name
    assert models[0].workspace_bytes(7) == models[1].workspace_bytes(7)
    exact, same = map(logits, models)
    assert np.array_equal(exact, same)
    near = logits(causal_model(load_model(str(folder), dtype="q8").model))
    assert np.linalg.norm(near - exact) < 0.05 * np.linalg.norm(exact)


@needs_kernels
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(("kind", "family"), [("gemma3", "gemma3_text"), ("mistral3", "mistral")])
def test_of_a_model_of_text_and_images_the_text_is_served(tmp_path, kind, family, is_old):
    text = family_model(family, vocab_size=264).config
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision = SiglipVisionConfig(**sizes, num_attention_heads=2, image_size=28, patch_size=14)
    parts = {"text_config": text.to_dict(), "vision_config": vision.to_dict()}
    own = {"mm_tokens_per_image": 4} if kind == "gemma3" else {"tie_word_embeddings": True}
    config = AutoConfig.for_model(kind, **parts, **own, eos_token_id=[1, 106])
    model = AutoModelForImageTextToText.from_config(config).float().eval()
    folder = save_model(tmp_path, model)
    tensors = {name: it for name, it in model.state_dict().items() if name != "lm_head.weight"}
    for old, new in (("model.language_model", "language_model.model"), ("model.v", "v")) * is_old:
        tensors = {name.replace(old, new): weight for name, weight in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load_model(str(folder), dtype="float32")
    assert loaded.stop_token_ids >= {1, 106}
    expected = tiny.hf_logits(model, tiny.tokens(60))
    found = logits(causal_model(loaded.model))
    assert np.linalg.norm(found - expected) < 2e-5 * np.linalg.norm(expected)
    add_tensor(folder, "audio_tower.weight")
    with pytest.raises(WeightsError, match=r"have audio_tower\.weight \(1 in all\)"):
        load_model(str(folder))


def config_of(family, **fields):
    return {"model_type": family, **SIZES, **OPTIONS[family], **fields}


UNREAD, HARMLESS, ROPES = (FIELD_CASES[name] for name in ("unread", "harmless", "ropes"))
"""Fields with values that would change answers, and that change nothing; the same of files."""


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("field", UNREAD)
def test_a_field_that_nothing_reads_is_refused_by_name_unless_it_is_neutral(family, field):
    wrong, neutral = UNREAD[field]
    account_fields(config_of(family, **{field: neutral}))
    if field not in defaults(family):
        wanted = rf"config\.json has {field} of .*, which models of type {family} have no reading"
        with pytest.raises(WeightsError, match=wanted):
            account_fields(config_of(family, **{field: wrong}))


@pytest.mark.parametrize("family", FORMS)
def test_fields_that_change_nothing_are_accepted(family):
    account_fields(config_of(family, **HARMLESS))
    account_fields(AutoConfig.for_model(family, **SIZES, **OPTIONS[family]).to_dict())


def test_a_window_that_is_switched_off_changes_nothing():
    account_fields(config_of("llama", sliding_window=9, use_sliding_window=False))
    with pytest.raises(WeightsError, match="sliding_window of"):
        account_fields(config_of("llama", sliding_window=9))


def test_mistral_with_kinds_of_layers_is_ministral():
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 9}
    first, second = (parse(config_of(name, **layers)) for name in ("mistral", "ministral"))
    assert first == second and first.windows == (9, 0, 9, 0)


WRONG = {
    int: ("3", -1.5, True, {}),
    float: ("3", True, {}, -1.0, float("nan"), float("inf")),
    bool: ("yes", 1, []),
    str: (3, True, []),
    type(None): ("3", True, 1.5),
}


@pytest.mark.parametrize("family", FORMS)
def test_a_value_of_another_type_is_refused_by_name(family):
    found = fields_of({"model_type": family})
    wrong = [(name, at) for name, value in found.items() for at in WRONG[type(value)]]
    for name, value in wrong:
        if value is None and name in ("eos_token_id", "sliding_window", ORIGINAL):
            continue
        with pytest.raises(WeightsError, match=rf"config\.json has {name} of"):
            fields_of(config_of(family, **{name: value}))


ODD = (None, "x", -1, 0, 1, 3.5, 10**400, True, [], [[]], [3], {}, {"full_attention": 5})


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_whatever_a_field_has_it_is_read_or_refused(family, value):
    changes = [{name: value} for name in (*defaults(family), "model_type", "text_config")]
    for kind in ("linear", "yarn", "llama3", "longrope", value):
        rope = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["short_factor"] = [1.0] * 8
        names = [*rope, "rope_theta", ORIGINAL]
        changes += [{"rope_scaling": {**rope, name: value}} for name in names]
    for change in changes:
        with suppress(NotNative, ModelError):
            parse(config_of(family, **change)).rotaries()


@pytest.mark.parametrize("style", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("rope", "name"), ROPES)
def test_a_rotary_parameter_that_is_not_read_is_refused_by_name(style, rope, name):
    for family in ("llama", "olmo2", "qwen3"):
        with pytest.raises(WeightsError, match=rf"config\.json has rope\.{name} of"):
            parse(config_of(family, **{style: rope}))
    with pytest.raises(WeightsError, match=rf"rope\.{name} of"):
        parse(config_of("gemma3_text", rope_scaling=rope))


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_as_they_are_published_are_read_as_by_transformers(tmp_path, name):
    config = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    account_fields(config)
    theirs = AutoConfig.from_pretrained(tmp_path).get_text_config().to_dict()
    ours = parse(config)
    assert ours == replace(parse(theirs), eos_ids=ours.eos_ids)
    ends = config.get("eos_token_id", 2)
    assert ours.eos_ids == frozenset(ends if isinstance(ends, list) else [ends])


TENSORS = ("model.layers.1.self_attn.q_proj.bias_2", "model.layers.9.mlp.up_proj.weight")
LOADED = [(family, TENSORS[at % 2], load_model) for at, family in enumerate(FORMS)]
LOADED += [("gpt-neox", TENSORS[at], load_target_parts) for at in (0, 1)]


@pytest.mark.parametrize(("family", "name", "load"), LOADED)
def test_a_tensor_that_nothing_reads_is_refused_by_name(tmp_path, family, name, load):
    make = tiny.hf_model if family == "gpt-neox" else family_model
    folder = save_model(tmp_path, make(family, vocab_size=264))
    add_tensor(folder, "model.layers.0.self_attn.rotary_emb.inv_freq")
    load(str(folder), dtype="float32")
    add_tensor(folder, name)
    with pytest.raises(WeightsError, match=rf"have {name} \(1 in all\)"):
        load(str(folder), dtype="float32")


@pytest.mark.parametrize(
    "field", ["logit_scale", "attn_logit_softcapping", "use_qk_norm", "clip_qkv"]
)
def test_what_torch_computes_is_accounted_for_as_well(tmp_path, field, caplog):
    folder = save_model(tmp_path, tiny.hf_model("gpt-neox", vocab_size=264))
    wrong, neutral = UNREAD[field]
    change_config(folder, **{field: neutral}, **HARMLESS)
    causal_model(load_model(str(folder)).model)
    if library.PATH.is_file():
        [record] = [at for at in caplog.records if at.message.startswith("torch computes")]
        assert record.levelno == logging.WARNING
        assert "models of type gpt_neox have no native forward. It is slower" in record.message
    change_config(folder, **{field: wrong})
    with pytest.raises(WeightsError, match=rf"config\.json has {field} of"):
        load_model(str(folder))


@pytest.mark.parametrize("family", [*FORMS, "gpt-neox"])
def test_torch_computes_each_family_within_its_window(family):
    if family == "gpt-neox":
        model = tiny.hf_model(family)
    else:
        own = {"sliding_window": 64} if "sliding_window" in defaults(family) else {}
        cap = {"final_logit_softcapping": 2.0} if family == "gemma3_text" else {}
        model = family_model(family, **own, **cap)
    expected = tiny.hf_logits(model, tiny.tokens(60))
    found = logits(causal_model(model, engine="torch")).numpy()
    assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)
