"""What a load may be: nonsense is one sentence, before anything is loaded."""

from itertools import islice

import pytest

from slipstream.bench.methods import parse_request_methods
from slipstream.bench.questions import Question
from slipstream.bench.serve.plan import Amount, Point, ServePlan, parse_points
from slipstream.bench.serve.run import turns
from slipstream.cli.main import exit_code
from slipstream.core.request.options import Mode, SpeculationOptions
from slipstream.core.types import Shape

QUESTIONS = tuple(Question(number, "ab"[number % 2], (f"q{number}",)) for number in range(5))


def plan(points="1,2", **changes):
    return ServePlan(
        parse_points(points, ""), parse_request_methods("plain,auto"), QUESTIONS, **changes
    )


def test_arms_are_what_a_request_asks_for():
    plain, auto, forced, glide = parse_request_methods("plain, auto,forced,glide+cape+depth=4")
    assert plain.options == SpeculationOptions(mode=Mode.OFF)
    assert auto.options == SpeculationOptions()
    assert forced.options == SpeculationOptions(mode=Mode.FORCED)
    assert (glide.options.shape, glide.options.drafter) == (Shape.CAPE, "glide")
    assert [at.name for at in (plain, auto, forced)] == ["plain", "auto", "forced"]


def test_arms_know_whether_plain_decodings_tokens_are_to_be_expected():
    exact, law_only = parse_request_methods("forced,glide+mcsd")
    assert exact.is_comparable(is_greedy=False)
    assert law_only.is_comparable(is_greedy=True)
    assert not law_only.is_comparable(is_greedy=False)


def test_loads_are_closed_then_open():
    points = parse_points("1, 8", "0.5,2")
    assert [point.name for point in points] == [
        "concurrency 1",
        "concurrency 8",
        "rate 0.5/s",
        "rate 2/s",
    ]
    assert [point.concurrency for point in points] == [1, 8, None, None]


def test_how_much_is_asked_is_said_in_one_of_three_ways():
    closed, opened = Point("concurrency", 4), Point("rate", 0.5)
    assert [Amount().num_requests(at) for at in (closed, opened)] == [8, 32]
    assert [Amount(3).num_requests(at) for at in (closed, opened)] == [12, 32]
    assert Amount(requests=7).num_requests(closed) == 7
    assert Amount(seconds=9).num_requests(closed) is None


def test_repeats_go_on_in_the_questions_which_are_mixed_by_category():
    asked = [
        [at.question_id for at in plan().questions_of(Point("concurrency", 2), n)] for n in (0, 1)
    ]
    assert asked == [[0, 1, 2, 3], [4, 0, 1, 2]]
    endless = plan(amount=Amount(seconds=1)).questions_of(Point("concurrency", 2), 1)
    assert [at.question_id for at in islice(endless, 6)] == [1, 2, 3, 4, 0, 1]


def test_every_repeat_goes_through_all_points_and_the_order_of_arms_moves_on():
    order = [(point.value, at.name, repeat) for point, at, repeat in turns(plan(repeats=2))]
    assert order == [
        (1, "plain", 0),
        (1, "auto", 0),
        (2, "plain", 0),
        (2, "auto", 0),
        (1, "auto", 1),
        (1, "plain", 1),
        (2, "auto", 1),
        (2, "plain", 1),
    ]
    assert plan(repeats=2).num_runs == len(order) + 4
    assert plan(repeats=2, warmup=0).num_runs == len(order)


BAD = [
    (["--concurrency", "0"], "a concurrency is 0"),
    (["--concurrency", "1.5"], "a concurrency is 1.5"),
    (["--concurrency", "two"], "concurrency is 'two', but must be numbers"),
    (["--concurrency", "2,2"], "concurrency 2 is named twice"),
    (["--rates", "0"], "a rate is 0"),
    (["--rates", "nan"], "a rate is nan"),
    (["--rates", "1,,2"], "rates is '1,,2'"),
    (["--repeats", "0"], "repeats is 0"),
    (["--warmup", "-1"], "warmup is -1"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0"),
    (["--seconds", "0"], "seconds is 0"),
    (["--num-requests", "0"], "num_requests is 0"),
    (["--requests-per-worker", "0"], "requests_per_worker is 0"),
    (["--seconds", "3", "--num-requests", "4"], "num_requests and seconds both say"),
    (["--rates", "1", "--requests-per-worker", "2"], "rates have none"),
    (["--slo-ttft-ms", "0"], "slo_ttft_ms is 0"),
    (["--slo-tpot-ms", "nan"], "slo_tpot_ms is nan"),
    (["--intruder-tokens", "0"], "intruder_tokens is 0"),
    (["--intruder-tokens", "9", "--rates", "1"], "a long prompt comes among workers"),
    (["--intruder-tokens", "9", "--seconds", "1"], "a long prompt ends its run"),
    (["--intruder-tokens", "9", "--check-identity"], "neither identity nor limits"),
    (["--intruder-tokens", "9", "--plot", "plots"], "--plot draws loads"),
    (["--methods", "plain,"], "must be names with commas between"),
    (["--methods", "auto,auto"], "method 'auto' is named twice"),
    (["--methods", "hf"], "method 'hf' needs an engine of its own"),
    (["--methods", "vanilla:x"], "method 'vanilla:x' needs an engine of its own"),
    (["--methods", "glide+fast"], "numerics are the engine's"),
    (["--methods", "medusa"], "'medusa' is unknown"),
    (["--methods", "plain+cape"], "drafts nothing"),
    (["--temperature", "nan"], "temperature is nan"),
    (["--seed", "-1"], "seed is -1"),
    (["--limit", "0"], "limit is 0"),
    (["--prompts", "nowhere"], "nowhere can't be read"),
    (["--json", "/"], "is a directory"),
    (["--router", "127.0.0.1:1", "--target", "x"], "--target runs models in this process"),
    (["--tls"], "--tls goes with --router only"),
    (["--target", "nowhere"], "'nowhere' is not on this machine"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD)
def test_nonsense_is_refused_in_one_sentence(flags, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_OFFLINE", "1")
    assert exit_code(["bench", "serve", *flags]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_plots_into_a_file_are_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert exit_code(["bench", "serve", "--plot", str(tmp_path / "file")]) == 2
    assert "is a file, but plots go into a directory" in capsys.readouterr().err
