"""The benchmark from end to end on a tiny model: what is written, and what is refused first."""

import json

import pytest

from slipstream.cli.main import exit_code
from slipstream.files import write_json
from slipstream.models.native.library import kernels
from support.commands import refusal
from support.models import tiny_checkpoint
from support.models.bench_files import FIGURES, save_pair, save_prompts


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The options for a tiny pair, and for two prompts."""
    folder = tmp_path_factory.mktemp("bench")
    questions = (1, "qa", ["abcabcab", "Then?"]), (2, "math", ["1 2 1 2 1"])
    return save_pair(folder, max_lag=8), save_prompts(folder, *questions)


def speed(files, out, *options):
    models, prompts = files
    return ["bench", "speed", *models, *prompts, "--json", str(out), *options]


def test_every_method_is_measured_and_identical_to_plain_decoding(files, tmp_path, capsys):
    methods = "plain,ngram,glide,glide+cape+svip,best"
    out = tmp_path / "out.json"
    options = ("--methods", methods, "--max-new-tokens", "12", "--repeats", "2")
    assert exit_code(speed(files, out, *options)) == 0
    written = json.loads(out.read_text())
    assert set(written) == {"environment", "methods"}
    assert set(written["methods"]) == set(methods.split(","))
    for name, parts in written["methods"].items():
        assert set(parts) == {"overall", "categories", "prompts"}
        assert set(parts["categories"]) == {"qa", "math"}
        overall = parts["overall"]
        assert set(overall) >= FIGURES
        assert (overall["outputs"], overall["identical"]) == (2, 2), name
        assert all(part["outputs"] == 1 for part in parts["categories"].values())
    assert written["methods"]["glide"]["overall"]["drafted_tokens"] > 0
    assert set(written["environment"]["draft_sha256"]) == {"model.safetensors"}
    assert written["environment"]["threads"] >= 1
    assert "glide+cape+svip" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_costs_are_written_for_every_number_of_rows(files, tmp_path):
    out = tmp_path / "cost.json"
    options = ["--rows", "1,4", "--rounds", "2", "--context", "20", "--json", str(out)]
    assert exit_code(["bench", "cost", *files[0], *options, "--roofline"]) == 0
    cost = json.loads(out.read_text())["cost"]
    assert list(cost["forward_ms"]) == ["1", "4"]
    assert cost["draft"]["step_ms"] > 0
    roofline = cost["roofline"]
    assert roofline["kernels"] == f"native {kernels()}"
    assert min(roofline["peak"].values()) > 0
    for rows, ms in cost["forward_ms"].items():
        reached = int(rows) * roofline["macs"] / ms / 1e6, roofline["bytes"] / ms / 1e6
        assert tuple(roofline["rows"][rows].values()) == pytest.approx(reached)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--methods", "medusa"], "'medusa' is unknown"),
        (["--repeats", "0"], "repeats is 0"),
        (["--max-new-tokens", "4000"], "question 1 has"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--draft", "nowhere"], "the draft is 'nowhere'"),
        (["--target", "nowhere"], "'nowhere' is not on this machine"),
        (["--methods", "vanilla:nowhere"], "'nowhere' is not on this machine"),
        (["--methods", "glide+decision"], "needs a decision model"),
        (["--methods", "glide+depth=20"], "trained for paths of at most"),
        (["--numerics", "wobbly"], "wobbly"),
        (["--json", "nowhere/out.json"], "can't be written"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    files, tmp_path, capsys, monkeypatch, options, reason
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_OFFLINE", "1")
    assert reason in refusal(capsys, *speed(files, "out.json", *options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--rows", "1,x"], "must be numbers as 1,4,16"),
        (["--rows", "2,4"], "must ascend from 1"),
        (["--rows", "1,500"], "at most 128"),
        (["--context", "100000"], "leaves no room"),
    ],
)
def test_costs_that_can_not_be_taken_are_refused(files, capsys, options, reason):
    assert reason in refusal(capsys, "bench", "cost", *files[0], *options)


def test_a_number_that_json_does_not_know_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "out.json", {"ratio": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_costs_of_random_weights_are_beside_the_time_that_reading_takes(tmp_path, device):
    shape = tiny_checkpoint.save_checkpoint(tmp_path, context_length=512)
    words = ("--shape", str(shape), "--device", device, "--dtype", "float32", "--rounds", "2")
    words += ("--context", "20", "--sessions", "1,3")
    out = tmp_path / "cost.json"
    assert exit_code(("bench", "cost", *words, "--rows", "1,4", "--json", str(out))) == 0
    cost = json.loads(out.read_text())["cost"]
    assert cost["engine"] == {"cpu": f"native {kernels()}", "cuda": "cuda"}[device]
    assert [*cost["sessions_ms"]] == ["1", "3"]
    assert cost["of_floor"] == pytest.approx(cost["floors_ms"]["1"] / cost["forward_ms"]["1"])
    assert cost["floors_ms"]["3"] > cost["floors_ms"]["1"]
    assert cost["draft"]["step_ms"] > 0
    for level in cost["rounds"]["levels"]:
        assert [*level["engines"]] == ["plain", "glide", "glide+cape", "auto"]
        for of in level["engines"].values():
            assert of["identical"] == of["outputs"] == 2 * level["users"] and of["round_ms"] > 0
        assert level["engines"]["glide+cape"]["drafted_tokens"] > 0
    assert [level["users"] for level in cost["rounds"]["levels"]] == [1, 3]
    assert (cost["captures"]["ready"] > 0) is (device == "cuda")


def test_an_unknown_shape_is_refused(capsys):
    said = refusal(capsys, "bench", "cost", "--shape", "abacus")
    assert "the shape is 'abacus', but must be llama-3.2-1b, llama-3-8b or a directory" in said
