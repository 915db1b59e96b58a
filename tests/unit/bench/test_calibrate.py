"""`slipstream calibrate`: what it fits and tries, runs on a tiny pair, and uses of its profile."""

import json
from dataclasses import replace

import pytest

from slipstream.bench.calibrate import Replayed, combined, name_of, settings
from slipstream.cli.main import exit_code
from slipstream.cli.up import StackFlags
from slipstream.client import Client, Mode, SpeculationOptions
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import fit_calibration
from slipstream.core.row_costs import monotone
from slipstream.core.types import Shape, StopPolicy
from support.commands import refusal
from support.models.bench_files import save_pair, save_prompts

BASE = Profile(lookup=1)


def coin(hits, misses, *, top_prob):
    """Outcomes of tokens of one confidence."""
    return [(top_prob, True)] * hits + [(top_prob, False)] * misses


def test_a_calibration_is_the_share_of_right_tokens_at_that_confidence():
    calibration = fit_calibration(coin(300, 100, top_prob=0.5) + coin(380, 20, top_prob=1.0))
    assert calibration.probability(0.5) == pytest.approx(0.75, abs=0.01)
    assert calibration.probability(1.0) == pytest.approx(0.95, abs=0.01)
    assert list(calibration.points) == sorted(calibration.points)


def test_without_any_token_a_calibration_takes_the_draft_at_its_word():
    assert fit_calibration([]).points == tuple(i / 10 for i in range(11))


def test_violations_of_order_are_pooled_by_weight():
    assert monotone([0.1, 0.5, 0.2, 0.9], [1, 1, 2, 1]) == pytest.approx([0.1, 0.3, 0.3, 0.9])
    assert monotone([0.3, 0.2, 0.1], [1, 1, 1]) == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("has_decision_model", [True, False])
def test_every_policy_is_tried_as_a_chain_and_with_leaves(has_decision_model):
    tried = settings(BASE, depth=5, has_decision_model=has_decision_model)
    stops = {StopPolicy.FIXED, StopPolicy.SVIP, StopPolicy.COST}
    assert {item.stop for item in tried} - {StopPolicy.DECISION} == stops
    assert (StopPolicy.DECISION in {item.stop for item in tried}) == has_decision_model
    assert {item.shape for item in tried} == {Shape.CHAIN, Shape.CAPE}
    assert len({name_of(item) for item in tried}) == len(tried)
    assert max(item.max_depth for item in tried) == 5


def replayed(threshold, greedy, sampled, **changes):
    both = {"threshold": threshold, "threshold_sampled": threshold}
    profile = replace(BASE, stop=StopPolicy.SVIP, **both, **changes)
    return Replayed(name_of(profile), profile, greedy, sampled)


def test_a_form_has_the_best_threshold_of_each_kind_and_the_fastest_form_leads():
    cape = [replayed(0.2, 2.0, 1.0), replayed(0.4, 1.5, 1.4)]
    chain = [replayed(0.3, 1.9, 1.3, shape=Shape.CHAIN)]
    best = combined([*chain, *cape])
    assert [item.shape for item in best] == [Shape.CAPE, Shape.CHAIN]
    assert (best[0].threshold, best[0].threshold_sampled) == (0.2, 0.4)
    assert chain[0].ratio == pytest.approx((1.9 * 1.3) ** 0.5)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A tiny target, a draft for it and two prompts."""
    folder = tmp_path_factory.mktemp("calibrate")
    save_pair(folder, max_lag=4)
    save_prompts(folder, (1, "qa", ["abcabcab"]), (2, "math", ["1 2 1 2 1"]))
    return folder


def calibrate(files, out, *options, draft="draft"):
    models = ["--target", str(files / "tiny"), "--draft", str(files / draft)]
    prompts = ["--prompts", str(files / "prompts.jsonl"), "--dtype", "float32"]
    return ["calibrate", *models, *prompts, "--out", str(out), *options]


@pytest.fixture(scope="module")
def out(files, tmp_path_factory):
    """What a short calibration writes."""
    out = tmp_path_factory.mktemp("out") / "mine.json"
    short = ("--max-new-tokens", "12", "--minutes", "0.01")
    assert exit_code(calibrate(files, out, *short)) == 0
    return out


def embedded(files, **options):
    return Client.embedded(str(files / "tiny"), str(files / "draft"), dtype="float32", **options)


def test_a_calibration_leaves_a_profile(out):
    assert [path.name for path in out.parent.iterdir()] == ["mine.json"]
    written = json.loads(out.read_text())
    assert written["format_version"] == 1
    assert set(written["models"]["weights_sha256"]) == {"model.safetensors"}
    assert written["profile"]["max_depth"] <= 4
    assert written["profile"]["step_cost"] is written["profile"]["row_cost"] is None
    measured = written["measured"]
    assert measured["num_prompts"] >= 1 and measured["num_tokens"] > 12
    assert measured["greedy"] > 0 and measured["sampled"] > 0


def test_a_plain_draft_is_calibrated_as_well(files, tmp_path):
    named = f"vanilla:{files / 'tiny'}"
    out = tmp_path / "plain.json"
    shortest = ("--max-new-tokens", "8", "--minutes", "0.01", "--depth", "2")
    assert exit_code(calibrate(files, out, *shortest, "--draft", named)) == 0
    written = json.loads(out.read_text())
    assert written["models"]["draft"] == "vanilla:tiny"
    with Client.embedded(str(files / "tiny"), named, dtype="float32", profile=out) as client:
        always = SpeculationOptions(mode=Mode.FORCED)  # whatever the clock found of such a draft
        result = client.generate("abab", max_tokens=8, speculation=always)
    assert result.stats.speculation.num_spec_steps > 0


def test_a_profile_file_takes_effect_and_the_tokens_stay(files, out):
    written = json.loads(out.read_text())
    deepest = out.with_name("deep.json")
    fields = {"shape": "chain", "stop": "fixed", "threshold": None, "lookup": 0}
    written["profile"] |= {**fields, "threshold_sampled": None, "max_depth": 2}
    deepest.write_text(json.dumps(written))
    with embedded(files, profile=deepest) as tuned, embedded(files) as own:
        ours = tuned.generate("abab", max_tokens=16)
        assert ours.token_ids == own.generate("abab", max_tokens=16).token_ids
        assert ours.stats.speculation.num_spec_tokens == 2
        assert set(ours.stats.speculation.per_step_drafted) <= {1, 2}


def test_a_profile_beside_glide_weights_is_their_default(files, out):
    own = files / "draft" / "profile.json"
    own.write_text(json.dumps(json.loads(out.read_text()) | {"profile": {"max_depth": 3}}))
    try:
        with embedded(files) as client:
            result = client.generate("abab", max_tokens=8)
            assert result.stats.speculation.num_spec_tokens == 3
        own.write_text("{}")
        with pytest.raises(InvalidRequest, match="it has no format_version"):
            embedded(files)
    finally:
        own.unlink()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "0"], "greedy replies are calibrated in any case"),
        (["--minutes", "0"], "minutes is 0.0, but must be from 0.001"),
        (["--draft", "ngram"], "only models are calibrated"),
        (["--prompts", "nowhere.jsonl"], "can't be read"),
        (["--out", "nowhere/profile.json"], "no writable directory"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(files, tmp_path, options, said, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capsys, *calibrate(files, tmp_path / "out.json", *options))
    assert not list(tmp_path.iterdir())


def test_a_draft_without_a_model_takes_no_profile(files, out, capsys):
    with pytest.raises(InvalidRequest, match="the draft is ngram, which takes no profile"):
        Client.embedded(str(files / "tiny"), "ngram", dtype="float32", profile=out)
    assert exit_code(["up", "--draft", "none", "--profile", str(out)]) == 2
    assert "the draft is none, which takes no profile" in capsys.readouterr().err


def test_commands_take_a_profile_where_they_choose_a_draft(files, out, tmp_path, capsys):
    models = ["--target", str(files / "tiny"), "--draft", str(files / "draft")]
    options = [*models, "--dtype", "float32", "--max-new-tokens", "4"]
    assert exit_code(["generate", *options, "--profile", str(out), "abab"]) == 0
    prompts = ["--prompts", str(files / "prompts.jsonl"), "--methods", "best"]
    assert exit_code(["bench", "speed", *options, *prompts, "--profile", str(out)]) == 0
    missing = str(tmp_path / "none.json")
    assert exit_code(["generate", *options, "--profile", missing, "abab"]) == 2
    assert "none.json can't be read" in capsys.readouterr().err
    assert StackFlags(profile=out).plan().flags["draft"][-2:] == ("--profile", str(out))


def test_a_profile_deeper_than_the_draft_was_trained_for_is_refused(files, out):
    written = json.loads(out.read_text())
    written["profile"]["max_depth"] = 5
    deep = out.with_name("too-deep.json")
    deep.write_text(json.dumps(written))
    with pytest.raises(InvalidRequest, match="trained for paths of at most 4"):
        embedded(files, profile=deep)
