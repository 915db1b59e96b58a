"""`slipstream bench breakeven` on a tiny model: a table, a file, plots, and what sizing takes."""

import json

import pytest

from slipstream.cli.main import exit_code
from slipstream.sizing.measured import read_measured
from tiny_checkpoint import save_checkpoint

SWEEPS = ("--acceptances", "0,1", "--cost-ratios", "0.5", "--rtts-ms", "1", "--sessions", "2")
SMALL = ("--depth", "2", "--max-new-tokens", "6", "--pairs", "1", "--cost-rounds", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("breakeven")
    save_checkpoint(found / "model")
    questions = [
        {"question_id": number, "category": "any", "turns": [text]}
        for number, text in enumerate(("one", "two", "three"))
    ]
    (found / "prompts.jsonl").write_text("".join(json.dumps(at) + "\n" for at in questions))
    return found


def bench(folder, *flags):
    model = ("--target", str(folder / "model"), "--dtype", "float32", "--draft", "ngram")
    prompts = ("--prompts", str(folder / "prompts.jsonl"))
    return exit_code(("bench", "breakeven", *model, *prompts, *SWEEPS, *SMALL, *flags))


def test_a_run_is_shown_drawn_and_taken_by_size(folder, capsys):
    file, plots = folder / "breakeven.json", folder / "plots"
    assert bench(folder, "--json", str(file), "--plot", str(plots)) == 0
    said = capsys.readouterr().out
    assert "break-even acceptance" in said and "the largest deviation" in said.lower()
    found = json.loads(file.read_text())
    figures = found["breakeven"]
    assert found["environment"]["target"] == str(folder / "model")
    assert figures["num_identical"] == figures["num_outputs"] > 0
    assert [at["sessions"] for at in figures["real"]] == [1, 2]
    sweeps = {name.replace("_", "-") for name in figures["sweeps"]}
    names = {f"breakeven-{name}.{end}" for name in sweeps for end in ("png", "svg")}
    assert {path.name for path in plots.iterdir()} == names

    assert exit_code(("size", "--measured", str(file), "--acceptance", "0.8", "--json")) == 0
    sized = json.loads(capsys.readouterr().out)
    assert sized["devices"] == figures["devices"]
    assert read_measured(file).depth == 2 >= sized["work"]["depth"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--acceptances", "1.5"), "acceptance is 1.5"),
        (("--cost-ratios", "much"), "cost ratios are 'much'"),
        (("--sessions", "0"), "sessions is 0"),
        (("--depth", "0"), "depth is 0"),
        (("--pairs", "0"), "num_pairs is 0"),
        (("--plot", __file__), "plots go into a directory"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(flags, reason, capsys):
    assert exit_code(("bench", "breakeven", *flags)) == 2
    assert reason in capsys.readouterr().err
