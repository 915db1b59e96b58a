"""`slipstream bench serve` on tiny models: embedded and behind a router, every kind of load."""

import asyncio
import json

import pytest

from slipstream.bench.methods import parse_request_methods
from slipstream.bench.questions import Question
from slipstream.bench.serve.figures import serve_figures
from slipstream.bench.serve.load import ServeLoad
from slipstream.bench.serve.plan import Amount, ServePlan, parse_points
from slipstream.bench.serve.run import find_references, run_serve
from slipstream.cli.main import exit_code
from slipstream.core.types import SamplingParams
from support.models.bench_files import save_prompts
from support.services import fleet
from support.services.cluster import running

PROMPTS = ((1, "a", ["hello there"]), (2, "b", ["abcabcabcabc"]), (3, "b", ["1 2 3"]))
QUESTIONS = tuple(Question(number, category, tuple(turns)) for number, category, turns in PROMPTS)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return fleet.save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def serve(target, tmp_path):
    """Runs the command on engines in this process, and returns what it has written."""
    prompts, out = save_prompts(tmp_path, *PROMPTS), tmp_path / "out.json"
    place = ["--target", str(target), "--draft", str(fleet.glide_of(target)), "--dtype", "float32"]

    def run(*flags):
        asked = [*prompts, "--json", str(out), "--threads", "1"]
        assert exit_code(["bench", "serve", *place, *asked, *flags]) == 0
        return json.loads(out.read_text())

    return run


def test_a_closed_loop_measures_every_method_at_every_concurrency(serve, tmp_path, capsys):
    flags = ["--concurrency", "1,3", "--repeats", "2", "--max-new-tokens", "12"]
    looked = ["--check-identity", "--slo-ttft-ms", "1e9", "--slo-tpot-ms", "1e-9"]
    written = serve(*flags, *looked, "--plot", str(tmp_path / "plots"))
    assert [point["value"] for point in written["serve"]["points"]] == [1, 3]
    for point in written["serve"]["points"]:
        assert list(point["arms"]) == ["plain", "auto", "forced"]
        assert set(point["ratios"]["auto"]) == {"plain", "forced", "better"}
        for name, of in point["arms"].items():
            num_requests = 2 * 2 * point["value"]
            assert (of["requests"], of["finished"], of["errors"]) == (
                num_requests,
                num_requests,
                {},
            )
            assert of["identity"]["identical"] == of["identity"]["outputs"] == num_requests
            assert (of["drafted_tokens"] > 0) is (name != "plain")
            assert of["goodput"]["met"] == 0
            assert of["tokens_per_s"] > 0
            assert 0 < of["ttft_ms"]["p50"] <= of["ttft_ms"]["p99"] <= of["latency_ms"]["p99"]
    assert written["serve"]["points"][0]["arms"]["plain"]["over_one_plain"]["median"] == 1
    assert written["environment"]["max_new_tokens"] == 12
    assert len(list((tmp_path / "plots").glob("concurrency-*.png"))) == 3
    assert "concurrency 3" in capsys.readouterr().out


def test_an_open_loop_sends_as_scheduled_and_sampled_outputs_are_those_of_the_prompts_alone(serve):
    flags = ["--rates", "50", "--num-requests", "6", "--repeats", "1", "--warmup", "0"]
    sampled = ["--temperature", "0.9", "--seed", "5", "--max-new-tokens", "8", "--check-identity"]
    (point,) = serve(*flags, *sampled, "--methods", "plain,forced")["serve"]["points"]
    assert (point["kind"], point["value"]) == ("rate", 50)
    for of in point["arms"].values():
        assert (of["finished"], of["identity"]["identical"]) == (6, 6)
        assert of["steady_tokens_per_s"] is None
        assert of["sent_late_ms"]["p50"] >= 0


def test_a_long_prompt_comes_among_running_sessions(serve, capsys):
    flags = ["--concurrency", "3", "--repeats", "1", "--max-new-tokens", "300", "--warmup", "0"]
    written = serve(*flags, "--intruder-tokens", "2500", "--methods", "plain,auto")
    (point,) = written["intruder"]["points"]
    for of in point["arms"].values():
        assert of["errors"] == {}
        assert all(of[f"{name}_ms"] > 0 for name in ("before", "during", "after"))
        assert of["intruder_ttft_ms"] > 0
        assert of["ratio"]["count"] == 1
    assert "long prompt's first token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--intruder-tokens", "4096"], "intruder_tokens is 4096, but the context holds 4096"),
        (["--max-new-tokens", "4090"], "question 1 has"),
        (["--methods", "ngram"], "drafter ngram is not here"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_anything_is_measured(
    target, flags, reason, capsys
):
    place = ["--target", str(target), "--draft", "none", "--dtype", "float32", "--threads", "1"]
    assert exit_code(["bench", "serve", *place, *flags]) == 2
    assert reason in capsys.readouterr().err


def test_a_router_is_asked_as_engines_of_ones_own_are(target, tmp_path):
    out = tmp_path / "out.json"
    with running(target, str(fleet.glide_of(target))) as cluster:
        flags = ["--concurrency", "2", "--repeats", "1", "--max-new-tokens", "6", "--limit", "2"]
        assert (
            exit_code(["bench", "serve", "--router", cluster.address, *flags, "--json", str(out)])
            == 0
        )
    written = json.loads(out.read_text())
    assert written["environment"]["router"] == cluster.address
    for of in written["serve"]["points"][0]["arms"].values():
        assert (of["finished"], of["errors"]) == (4, {})


async def test_behind_a_router_what_it_refuses_is_counted_and_the_rest_is_measured(target):
    plan = ServePlan(
        parse_points("4", ""),
        parse_request_methods("plain,forced"),
        QUESTIONS,
        SamplingParams(),
        Amount(requests=12),
        max_new_tokens=16,
        repeats=1,
    )
    one, draft = fleet.target_worker(target), fleet.draft_worker("ngram", target)
    limits = {"max_requests": 2}
    async with fleet.running(one, draft), fleet.routed([one], [draft], **limits) as client:
        load = ServeLoad(plan, client, lambda name: None)
        runs = await asyncio.wait_for(run_serve(load), 60)
        figures = serve_figures(plan, runs, await find_references(load, runs))
    for of in figures["points"][0]["arms"].values():
        assert of["requests"] == 12
        assert of["finished"] + sum(of["errors"].values()) == 12
        assert set(of["errors"]) == {"CapacityError"}
        assert of["identity"]["identical"] == of["finished"] > 0
