"""`slipstream bench telemetry` on a tiny model: both stacks answer alike, and one of them tells."""

import json

import pytest

from processes import ROOT, save_long_checkpoint
from slipstream.cli.main import exit_code


def test_both_say_the_same_and_one_of_them_tells_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    target = save_long_checkpoint(tmp_path / "tiny")
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text(json.dumps({"question_id": 1, "category": "a", "turns": ["hello"]}) + "\n")
    place = ["--model", str(target), "--draft", "ngram", "--dtype", "float32"]
    asked = ["--pairs", "2", "--num-requests", "2", "--max-new-tokens", "8"]
    asked += ["--prompts", str(prompts), "--trace-ratio", "1", "--settle-s", "0"]
    flags = [*place, "--threads", "1", *asked, "--json", str(out)]
    assert exit_code(["bench", "telemetry", *flags]) == 0
    written = json.loads(out.read_text())
    figures, environment = written["telemetry"], written["environment"]
    assert (environment["ratio"], environment["num_pairs"], environment["model"]) == (
        1.0,
        2,
        str(target),
    )
    assert {name: len(rates) for name, rates in figures["runs"].items()} == {"off": 2, "on": 2}
    assert figures["ratio"]["count"] == 2
    assert (figures["num_identical"], figures["failures"]) == (figures["num_requests"], [])
    exported, scraped = figures["exported"], figures["scraped"]
    # Both requests of both pairs and those of the run that does not count.
    assert exported["num_traces"] == 6
    assert exported["num_spans"] > exported["num_traces"]
    assert min(exported["num_points"], exported["num_metrics"]) > 0
    assert scraped["num_pages"] >= 3 * 2  # of target and router, in each of three runs
    assert scraped["num_samples"] > 0
    assert scraped["num_failed"] == 0
    said = capsys.readouterr().out
    assert "on / off" in said
    assert "spans of 6 requests" in said


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--trace-ratio", "1.5"], "trace_ratio is 1.5"),
        (["--settle-s", "-1"], "settle_s is -1"),
        (["--pairs", "0"], "num_pairs is 0"),
        (["--concurrency", "9"], "8 requests leave some of 9 users without one"),
    ],
)
def test_nonsense_is_refused(flags, reason, capsys):
    assert exit_code(["bench", "telemetry", *flags]) == 2
    assert reason in capsys.readouterr().err
