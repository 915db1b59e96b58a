"""Sampling defaults are those of generation_config.json, all of which is accounted for."""

import json

import pytest

from slipstream.core.errors import InvalidRequest, WeightsError
from slipstream.models.loaded import sampling_defaults
from slipstream.models.loading import load_model
from slipstream.models.torch.loading import load_target_parts
from slipstream.options import build
from slipstream.verifying.build import build_target
from slipstream_target.config import TargetConfig
from support.models import tiny_gguf
from support.models.tiny_checkpoint import save_checkpoint

FILE = "generation_config.json"
SAMPLED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
NEUTRAL = {"num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": []}
HARMLESS = {"do_sample": True, "transformers_version": "5", "max_length": 9, "eos_token_id": [1]}
OTHERS = {"new": "x", "no_repeat_ngram_size": 1, "num_beams": 4, "suppress_tokens": [7]}
GREEDY = {"do_sample": False, **SAMPLED, "repetition_penalty": 1.1}
KINDS = [
    ({**HARMLESS, **SAMPLED, **NEUTRAL}, SAMPLED),
    ({**SAMPLED, **OTHERS}, SAMPLED),
    (GREEDY, {"temperature": 0.0, "repetition_penalty": 1.1}),
    ({"temperature": 0, "top_p": None, "min_p": 0.1}, {"temperature": 0, "min_p": 0.1}),
]


@pytest.mark.parametrize("has_file", [False, True])
def test_a_gguf_file_has_its_own_defaults_where_there_is_no_file(tmp_path, caplog, has_file):
    own = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "penalty_repeat": 1.0, "xtc_probability": 0.5}
    more = {f"general.sampling.{name}": value for name, value in own.items()}
    path = tiny_gguf.write(tmp_path / "a.gguf", lambda _: "F32", hidden=64, more=more)
    if has_file:
        (tmp_path / FILE).write_text('{"min_p": 0.25, "top_k": -1}')
    expected = {"min_p": 0.25} if has_file else {**SAMPLED, "repetition_penalty": 1.0}
    assert sampling_defaults(path) == expected
    sentence = f"general.sampling of {path} has what is not applied: xtc_probability"
    assert [it.getMessage() for it in caplog.records] == [sentence][has_file:]


@pytest.mark.parametrize(("about", "expected"), KINDS)
def test_a_file_is_applied_and_what_else_changes_answers_is_named(
    tmp_path, caplog, about, expected
):
    assert sampling_defaults(tmp_path) == {}
    (tmp_path / FILE).write_text(json.dumps(about))
    assert sampling_defaults(tmp_path) == expected
    named = [it.getMessage().partition("not applied: ")[2] for it in caplog.records]
    assert named == ([", ".join(OTHERS)] if "new" in about else [])


BROKEN = {
    '{"temperature": -1}': "temperature of -1",
    '{"temperature": NaN}': "temperature of nan",
    '{"temperature": 1e9}': "temperature is 1",
    '{"top_p": "high"}': "top_p of 'high'",
    '{"top_p": 1.5}': r"top_p is 1\.5, but must be between 0 and 1",
    '{"top_k": 2.5}': r"top_k of 2\.5",
    '{"top_k": 4294967296}': "top_k of 4294967296",
    '{"min_p": true}': "min_p of True",
    '{"do_sample": "no"}': "do_sample of 'no'",
    "[]": "is no object",
    "{": "can't be loaded",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_or_value_is_refused_by_name(tmp_path, text):
    folder = save_checkpoint(tmp_path / "tiny")
    (folder / FILE).write_text(text)
    for load in (load_model, load_target_parts):
        with pytest.raises(WeightsError, match=rf"{FILE}.* {BROKEN[text]}"):
            build_target(load(str(folder)))


def test_the_option_is_model_or_none_which_reads_no_defaults(tmp_path):
    loaded = load_model(str(save_checkpoint(tmp_path)))
    (tmp_path / FILE).write_text(json.dumps(SAMPLED))
    assert build_target(loaded, has_defaults=False).facts.sampling_defaults == {}
    with pytest.raises(InvalidRequest, match="sampling_defaults is 'auto', but must be one of mod"):
        build(TargetConfig, sampling_defaults="auto")
