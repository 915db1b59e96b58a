"""`slipstream size` and `slipstream simulate`: what they take, and what they print."""

import json

import pytest

from slipstream.cli.main import exit_code
from slipstream.cli.sizing.size import RoundFlags, _counts
from slipstream.core.errors import InvalidRequest
from slipstream.sizing.gpus import MODELS


def printed(capsys, *args):
    assert exit_code(args) == 0
    return capsys.readouterr().out


def test_size_says_how_many_drafts_are_needed(capsys):
    values = json.loads(printed(capsys, "size", "--sessions", "16", "--json"))
    assert values["drafts_needed"] == values["pools"]["drafts"] >= 1
    assert values["gain"] == values["tokens_per_s"] / values["plain_tokens_per_s"]
    assert "drafts needed" in printed(capsys, "size", "--sessions", "16")


def test_size_computes_the_times_of_a_model_on_a_gpu(capsys):
    args = ("size", "--device", "h100", "--model", "llama-3-8b", "--sessions", "16")
    values = json.loads(printed(capsys, *args, "--json"))
    on_gpu, plain = values["on_gpu"], values["on_gpu"]["steps"][0]
    assert (plain["sessions"], plain["rows"]) == (1, 1)
    assert values["times"]["verify"][0] == [1, plain["expected_s"]]
    assert values["times"]["level_s"] == on_gpu["draft_step"]["expected_s"]
    text = printed(capsys, *args, "--targets", "2")
    assert "drafts needed" in text
    assert f"{on_gpu['max_sessions']} sessions of 4096 tokens" in text


def test_sizes_are_read_from_a_models_config(capsys, tmp_path):
    config = {**MODELS["llama-3-8b"], "num_hidden_layers": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    args = ("size", "--device", "h100", "--json", "--model")
    half, whole = (
        json.loads(printed(capsys, *args, name))["on_gpu"] for name in (str(tmp_path), "llama-3-8b")
    )
    assert 2 * half["kv_per_token"] == whole["kv_per_token"]


def test_a_family_without_known_sizes_is_refused_in_a_sentence(capsys, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neox"}')
    assert exit_code(("size", "--device", "h100", "--model", str(tmp_path))) == 2
    assert "has no sizes to compute with: models of type gpt_neox" in capsys.readouterr().err


def test_drafts_that_suffer_from_company_are_needed_in_greater_number(capsys):
    args = ("size", "--sessions", "16", "--draft-ms", "4", "--json", "--draft-row-ms")
    cheap, dear = (json.loads(printed(capsys, *args, text)) for text in ("0.1", "10"))
    assert cheap["drafts_needed"] < dear["drafts_needed"]


def test_times_that_are_given_replace_those_that_are_assumed(capsys):
    times = RoundFlags(draft_ms=7.0, verify_ms=50.0).recording().times
    assert times.level_s == 0.007
    assert times.curve().seconds(1) == 0.05


def test_simulate_plays_every_number_of_drafts_and_finds_the_knee(capsys):
    args = ("simulate", "--drafts", "0-2", "--sessions", "4", "--output-tokens", "16")
    values = json.loads(printed(capsys, *args, "--json"))
    assert [run["fleet"]["drafts"] for run in values["runs"]] == [0, 1, 2]
    most = max(run["tokens_per_s"] for run in values["runs"])
    rates = {run["fleet"]["drafts"]: run["tokens_per_s"] for run in values["runs"]}
    assert rates[values["knee"]] >= 0.95 * most
    assert "knee: " in printed(capsys, *args)


def test_users_may_come_at_a_rate(capsys):
    args = ("simulate", "--drafts", "1", "--rate", "5", "--output-tokens", "8", "--json")
    [run] = json.loads(printed(capsys, *args))["runs"]
    assert run["requests"] == 50


@pytest.mark.parametrize(
    "args",
    [
        ("size", "--acceptance", "1.5"),
        ("size", "--depth", "0"),
        ("size", "--traces", "/no/such/directory"),
        ("size", "--model", "llama-3-8b"),
        ("size", "--device", "h100"),
        ("size", "--device", "abacus", "--model", "llama-3-8b"),
        ("size", "--device", "h100", "--model", "/no/such/model"),
        ("size", "--device", "h100", "--model", "llama-3-8b", "--draft-ms", "4"),
        ("size", "--device", "h100", "--model", "llama-3-8b", "--context", "0"),
        ("simulate", "--drafts", "many"),
        ("simulate", "--drafts", "2-1"),
        ("simulate", "--targets", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(capsys, args):
    assert exit_code(args) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_rounds_are_of_traces_or_random_but_not_both(tmp_path):
    with pytest.raises(InvalidRequest, match="leave out --acceptance"):
        RoundFlags(traces=tmp_path, acceptance=0.5).recording()


def test_numbers_are_told_one_by_one_or_from_one_to_another():
    assert _counts("1,2,4") == (1, 2, 4)
    assert _counts("3,0-2") == (0, 1, 2, 3)
