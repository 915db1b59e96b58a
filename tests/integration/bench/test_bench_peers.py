"""`slipstream bench peers` on tiny models: engines in processes, figures, files, refusals."""

import json
from importlib.util import find_spec

import pytest
import torch

from slipstream.cli.main import exit_code
from support.commands import refusal
from support.models.bench_files import save_pair, save_prompts
from support.services.processes import ROOT

PROMPTS = ((1, "a", ["hello there"]), (2, "b", ["abcabcabcabc"]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny target and GliDe weights for it."""
    vocab = torch.arange(0, 259, 2)
    return [*save_pair(tmp_path_factory.mktemp("pair"), max_lag=6, vocab=vocab), "--threads", "1"]


@pytest.fixture
def asked(tmp_path):
    return [*save_prompts(tmp_path, *PROMPTS), "--max-new-tokens", "12", "--settle-s", "0"]


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Engines find the package, and share what there is of a machine with other tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".dev"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_everybody_answers_the_same_prompts_with_the_same_tokens(pair, asked, tmp_path, capsys):
    file, page, plots = tmp_path / "peers.json", tmp_path / "peers.md", tmp_path / "plots"
    has_llama = find_spec("llama_cpp") is not None  # the config itself is tested where it is there
    configs = "hf,hf-assistant,plain+invariant,glide+cape,glide+depth=9,best"
    configs += "" if has_llama else ",llama.cpp"
    out = ["--json", str(file), "--markdown", str(page), "--plot", str(plots)]
    how = ["--arms", configs, "--concurrency", "1,2", "--concurrent-limit", "2"]
    assert exit_code(["bench", "peers", *pair, *asked, *how, *out]) == 0
    said = capsys.readouterr().out
    assert said.count("skipped") == 3 - has_llama, said
    assert has_llama or "llama-cpp-python is not installed" in said
    assert "skipped glide+depth=9: InvalidRequest: method 'glide+depth=9': 9 draft" in said
    assert "skipped hf-assistant: there is no assistant model" in said
    assert "best is " in said
    figures = json.loads(file.read_text())["peers"]
    assert figures["whole"]
    alone, together = figures["levels"]
    assert list(alone["arms"]) == ["hf", "plain+invariant", "glide+cape", "best"]
    assert list(together["arms"]) == ["hf", "best"]
    for level in (alone, together):
        for of in level["arms"].values():
            assert of["tokens"] == 24
            assert of["identity"] == {"same": 2, "of": 2, "by": "tokens"}
    assert alone["arms"]["hf"]["tokens_per_forward"] == 1
    assert set(alone["arms"]["best"]["categories"]) == {"a", "b"}
    assert "| glide+cape |" in page.read_text()
    names = {"peers-1", "peers-2", "peers-categories", "peers-concurrency"}
    assert {path.stem for path in plots.iterdir()} == names


BAD = [
    (["--arms", "nobody"], "method 'nobody' is unknown"),
    (["--arms", "hf,hf"], "configuration 'hf' is named twice"),
    (["--arms", "distributed:ngram"], "needs another draft than the services have"),
    (["--arms", "hf", "--concurrent-arms", "plain"], "'plain' is none of the configurations hf"),
    (["--endpoint", "here"], "must be NAME=http://"),
    (["--endpoint", "hf=http://localhost/v1"], "has the name of another configuration"),
    (["--concurrency", "1,1"], "each once"),
    (["--concurrency", "0"], "from 1 to 64"),
    (["--limit", "0"], "limit is 0"),
    (["--markdown", "/"], "is a directory"),
    (["--json", "/"], "is a directory"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD)
def test_nonsense_is_refused_before_anything_is_loaded(flags, reason, capsys):
    assert reason in refusal(capsys, "bench", "peers", *flags)
