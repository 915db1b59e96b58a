"""Profiles: their values, their file, and what of them is for sampled requests."""

import json
from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.policy.profile import DraftFacts, Profile, resolve
from slipstream.core.policy.stop import Calibration
from slipstream.core.types import Shape, StopPolicy
from slipstream.drafting.profile_file import ModelPair, profile_file, read_profile
from slipstream.options import overlaid

PAIR = ModelPair("tiny", "glide", "t" * 64, {"model.safetensors": "a" * 64})
PROFILE = Profile(
    Shape.CAPE,
    StopPolicy.COST,
    0.125,
    threshold_sampled=0.25,
    max_depth=6,
    cape_table=(3, 2, 0),
    calibration=Calibration((0.0, 0.25, 1.0)),
)


def test_sampled_requests_have_a_threshold_and_a_calibration_of_their_own():
    curves = Calibration((0.0, 0.5)), Calibration((0.0, 1.0))
    profile = Profile(
        threshold=0.4, threshold_sampled=0.2, calibration=curves[0], calibration_sampled=curves[1]
    )
    for temperature, threshold, curve in ((0.0, 0.4, curves[0]), (0.7, 0.2, curves[1])):
        facts = DraftFacts("glide", profile)
        assert resolve(SpeculationOptions(), facts, temperature=temperature).threshold == threshold
        assert profile.calibration_at(temperature) == curve


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({}, 11),
        ({"max_draft_tokens": 40}, 40),
        ({"max_draft_tokens": 40, "max_nodes": 7}, 7),
        ({"shape": "product", "widths": (2, 2, 1, 1, 1, 1, 1)}, 26),
        ({"verification": "target-init", "num_roots": 3, "max_draft_tokens": 4}, 15),
    ],
)
def test_a_tree_that_a_request_names_is_not_cut_to_the_profiles_size(options, nodes):
    asked, profile = SpeculationOptions(**options), Profile(max_depth=6, max_nodes=11)
    settings = resolve(asked, DraftFacts("vanilla", profile))
    assert (settings.max_nodes, settings.widths) == (nodes, asked.widths or ())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"speed": 2}, "here has 'speed', but known are shape, stop"),
        ({"max_depth": 0}, "here can't be used: a profile's max_depth is 0"),
        ({"max_depth": 2.5}, "max_depth of here is 2.5, but must be a whole number"),
        ({"max_depth": True}, "max_depth of here is True"),
        ({"stop": "never"}, "stop of here is 'never', but must be one of fixed"),
        ({"threshold": "0.3"}, "threshold of here is '0.3'"),
        ({"stop": "svip", "threshold": -1}, "threshold of stop svip is -1"),
        ({"cape_table": [1, -1]}, "cape_table is"),
        ({"cape_table": [1, "x"]}, "an item in cape_table of here is 'x'"),
        ({"cape_table": 3}, "cape_table of here is 3, but must be a list"),
        ({"calibration": {"points": [0.1]}}, "a calibration has 1 points"),
        ({"calibration": [0.1]}, "calibration of here must be a table"),
        ([], "here must be a table of fields"),
        *(({"max_depth": at}, "a profile's max_depth") for at in (0, 41)),
        *(({"step_cost": at}, "step_cost (of here )?is") for at in (-0.1, float("nan"))),
        *(({"shape": at}, "a profile's shape") for at in ("product", "fork")),
        *(({name: at}, "a profile's") for name, at in (("max_nodes", 128), ("row_cost", -0.1))),
        ({"lookup": -1}, "a profile's lookup"),
    ],
)
def test_a_profile_that_is_none_is_refused_by_what_is_wrong(values, said):
    with pytest.raises(InvalidRequest, match=said):
        overlaid(Profile(), values, "here")


def test_a_profile_file_is_for_its_models_only(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_file(PROFILE, PAIR, {"command": "slipstream calibrate"})))
    assert read_profile(path, PAIR) == PROFILE
    assert read_profile(path, replace(PAIR, target="")) == PROFILE
    for changes, said in (
        ({"target": "other"}, "is for target 'tiny', but here it is 'other'"),
        ({"draft": "vanilla:tiny"}, "is for draft 'glide'"),
        ({"weights_sha256": {"model.safetensors": "b" * 64}}, "weights sha256 model.safetensors a"),
        ({"tokenizer_hash": "u" * 64}, "is for tokenizer hash"),
    ):
        with pytest.raises(ModelMismatch, match=said):
            read_profile(path, replace(PAIR, **changes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read"),
        ("", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"format_version": 1}', "it has no models"),
        ('{"format_version": 2, "models": {}, "profile": {}}', "format_version 2, but known is 1"),
        ('{"formatted": 1}', "has 'formatted', but known are format_version"),
        ('{"format_version": 1, "models": [], "profile": {}}', "models of .* is no object"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        read_profile(path, PAIR)
