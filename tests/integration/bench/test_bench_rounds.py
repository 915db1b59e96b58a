"""`slipstream bench rounds` on a tiny pair: services, figures and files."""

import json

import pytest
import torch

from slipstream.cli.main import exit_code
from support.commands import IMPORT_PATH, refusal
from support.models.bench_files import save_pair, save_prompts

PROMPTS = ((1, "a", ["hello there"]), (2, "b", ["abcabcabcabc"]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny target and GliDe weights for it."""
    vocab = torch.arange(0, 259, 2)
    return save_pair(tmp_path_factory.mktemp("pair"), max_lag=4, vocab=vocab)


@pytest.fixture
def prompts(tmp_path):
    return save_prompts(tmp_path, *PROMPTS)


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Services find the package, and share what there is of a machine with other tests."""
    monkeypatch.setenv("PYTHONPATH", IMPORT_PATH)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_embedded_and_distributed_say_the_same_and_the_parts_of_a_round_are_printed(
    pair, prompts, tmp_path, capsys
):
    file = tmp_path / "rounds.json"
    flags = ["--max-new-tokens", "24", "--json", str(file)]
    assert exit_code(["bench", "rounds", *pair, *prompts, *flags]) == 0
    said = capsys.readouterr().out
    assert "draft waits for keys and values" in said
    written = json.loads(file.read_text())
    assert set(written["rounds"]) == {"embedded", "plain", "distributed"}
    for engine, figures in written["rounds"].items():
        assert figures["identical"] == len(PROMPTS)
        assert figures["tokens"] == 24 * len(PROMPTS)
        assert (figures["drafted_tokens"] > 0) is (engine != "plain")
        assert figures["fallbacks"] == {}
    distributed = written["rounds"]["distributed"]["round_ms"]
    assert all(distributed[part] > 0 for part in ("draft_engine", "draft_wire", "target_engine"))


BAD = [
    (["--mode", "off"], "mode is 'off'"),
    (["--max-new-tokens", "1"], "max_new_tokens is 1"),
    (["--draft", "ngram"], "a directory of GliDe weights"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD)
def test_nonsense_is_refused_before_anything_is_started(flags, reason, capsys):
    assert reason in refusal(capsys, "bench", "rounds", *flags)
