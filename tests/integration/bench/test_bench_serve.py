"""`slipstream bench serve` on tiny models: embedded and behind a router."""

import json

import pytest

from slipstream.cli.main import exit_code
from support.commands import refusal
from support.models.bench_files import save_prompts
from support.services import fleet
from support.services.cluster import running

PROMPTS = ((1, "a", ["hello there"]), (2, "b", ["abcabcabcabc"]), (3, "b", ["1 2 3"]))


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_outputs_under_load_are_those_of_the_prompts_alone(folder, tmp_path, capsys, temperature):
    prompts, out = save_prompts(tmp_path, *PROMPTS), tmp_path / "out.json"
    place = ["--target", str(folder), "--draft", str(fleet.glide_of(folder)), "--dtype", "float32"]
    load = ["--concurrency", "1,3", "--repeats", "2", "--max-new-tokens", "12", "--threads", "1"]
    flags = [*place, *load, *prompts, "--temperature", temperature, "--json", str(out)]
    assert exit_code(["bench", "serve", *flags]) == 0
    written = json.loads(out.read_text())
    assert [level["users"] for level in written["serve"]["levels"]] == [1, 3]
    for level in written["serve"]["levels"]:
        assert list(level["engines"]) == ["plain", "auto", "forced"]
        for name, of in level["engines"].items():
            num = 2 * 2 * level["users"]
            assert of["requests"] == of["identical"] == of["outputs"] == num
            assert (of["drafted_tokens"] > 0) is (name == "forced") or name == "auto"
            assert of["tokens_per_s"] > 0
    assert written["environment"]["max_new_tokens"] == 12
    assert "12/12" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--methods", "plain", "--max-new-tokens", "4090"], "exceed the context of"),
        (["--methods", "ngram"], "drafter ngram is not here"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(folder, flags, reason, capsys):
    place = ["--target", str(folder), "--draft", "none", "--dtype", "float32", "--threads", "1"]
    assert reason in refusal(capsys, "bench", "serve", *place, *flags)


def test_a_router_serves_a_load_as_embedded_engines_do(folder, tmp_path):
    out = tmp_path / "out.json"
    with running(folder, str(fleet.glide_of(folder))) as cluster:
        place = ["--router", cluster.address, "--limit", "2", "--json", str(out)]
        flags = ["--concurrency", "2", "--repeats", "1", "--max-new-tokens", "6"]
        assert exit_code(["bench", "serve", *place, *flags]) == 0
    written = json.loads(out.read_text())
    assert written["environment"]["router"] == cluster.address
    for of in written["serve"]["levels"][0]["engines"].values():
        assert of["requests"] == of["identical"] == 4
