"""Figures under load: percentiles, goodput, medians with intervals, and windows."""

import random
from statistics import median

import pytest

from slipstream.bench.methods import parse_request_methods
from slipstream.bench.questions import Question
from slipstream.bench.serve import report
from slipstream.bench.serve.figures import (
    better,
    identity,
    paired,
    point_ratios,
    runs_figures,
    serve_figures,
)
from slipstream.bench.serve.interference import (
    InterferenceRun,
    Window,
    interference_figures,
    longest_gap,
    time_per_token,
)
from slipstream.bench.serve.plan import Point, ServePlan
from slipstream.bench.serve.sample import Failure, GoodputLimits, LoadRun, LoadSample, Mark
from slipstream.bench.statistics import median_interval, spread
from slipstream.core.errors import InvalidRequest
from slipstream.core.request.results import RequestStats, Timings
from slipstream.core.request.stats import SpeculationStats

FULL = Failure("CapacityError", "there is no room")


def stats(tokens, *, steps=0, accepted=0, plain=0, cached=0):
    spec = SpeculationStats(steps, plain, 3 * steps, accepted, 5, (), (), (), {}, {}, True)
    return RequestStats(10, cached, tokens, Timings(1, 1, 0, 0), spec)


def sample(due, times, *, name=1, counts=None, failure=None, tokens=None, **more):
    """A request that got tokens at these times, and ended with the last."""
    marks = tuple(Mark(at, num) for at, num in zip(times, counts or [1] * len(times), strict=True))
    num = sum(mark.num_tokens for mark in marks)
    ended = times[-1] if times else due + 0.5
    told = None if failure else stats(num, **more)
    ids = tuple(range(num)) if tokens is None else tuple(tokens)
    return LoadSample(name, due, due, ended, marks, ids, told, failure)


def test_percentiles_are_linear_between_neighbours():
    found = spread([4, 1, 3, 2])
    assert (found["p50"], found["p90"]) == (2.5, pytest.approx(3.7))
    assert spread([7.0])["p99"] == 7.0


def test_a_spread_has_every_percentile_and_the_mean_and_none_of_nothing():
    assert spread(range(101)) == {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "mean": 50}
    assert spread([]) is None


@pytest.mark.parametrize(
    ("count", "low", "high", "coverage"),
    [
        (1, 0, 0, 0.0),
        (5, 0, 4, 0.9375),
        (7, 0, 6, 0.984375),
        (9, 1, 7, 0.9609375),
        (20, 5, 14, 0.9586),
    ],
)
def test_an_interval_is_the_narrowest_pair_of_order_statistics_that_covers(
    count, low, high, coverage
):
    values = list(range(count))
    random.Random(0).shuffle(values)
    found = median_interval(values)
    assert (found.low, found.high, found.count) == (low, high, count)
    assert found.coverage == pytest.approx(coverage, abs=1e-4)
    assert found.median == median(values)


def test_an_interval_covers_the_median_as_often_as_it_says():
    rng, inside = random.Random(5), 0
    for _ in range(4000):
        found = median_interval([rng.expovariate(1.0) for _ in range(9)])
        inside += found.low <= 0.693147 <= found.high
    assert inside / 4000 == pytest.approx(0.961, abs=0.012)


def test_latencies_count_from_the_users_coming():
    one = LoadSample(1, 2.0, 2.5, 9.0, (Mark(3.0, 1), Mark(4.0, 3), Mark(8.0, 2)), (), stats(6))
    assert one.ttft_s == 1.0
    assert one.tpot_s == 5.0 / 5
    assert one.latency_s == 7.0
    assert one.gaps_s == [1.0, 4.0]


def test_what_the_benchmark_sent_late_is_told_of_open_loops_only():
    late = LoadSample(1, 2.0, 2.5, 9.0, (Mark(3.0, 1),), (1,), stats(1))
    assert runs_figures([LoadRun([late])], GoodputLimits())["sent_late_ms"]["p99"] == 500
    assert runs_figures([LoadRun([late], 1)], GoodputLimits())["sent_late_ms"] is None


def test_what_did_not_come_has_no_time():
    none, single = sample(0, [], failure=FULL), sample(0, [1.0])
    assert (none.ttft_s, none.tpot_s, none.gaps_s) == (None, None, [])
    assert (single.ttft_s, single.tpot_s) == (1.0, None)


def test_goodput_counts_requests_that_met_every_limit_over_all_of_the_time():
    run = LoadRun(
        [
            sample(0, [0.1, 0.2, 0.3]),
            sample(0, [0.6, 0.7]),  # first token late
            sample(0, [0.1, 0.5]),  # slow
            sample(1, [1.1]),  # one token has no time per token
            sample(1, [1.1, 1.2], failure=FULL),
        ]
    )
    limits = GoodputLimits(ttft_ms=500, tpot_ms=200)
    assert [limits.met_by(one) for one in run.samples] == [True, False, False, True, False]
    figures = runs_figures([run], limits)["goodput"]
    assert figures["share"] == pytest.approx(2 / 5)
    assert figures["requests_per_s"] == pytest.approx(2 / 1.2)
    assert runs_figures([run], GoodputLimits())["goodput"] is None


def test_errors_are_counted_by_name_and_their_tokens_are_not_output():
    run = LoadRun(
        [sample(0, [1.0, 2.0]), sample(0, [1.0], failure=FULL), sample(0, [], failure=FULL)]
    )
    figures = runs_figures([run], GoodputLimits())
    assert figures["errors"] == {"CapacityError": 2}
    assert figures["error_examples"] == {"CapacityError": "there is no room"}
    assert (figures["requests"], figures["finished"], figures["tokens"]) == (3, 1, 2)
    assert figures["tokens_per_s"] == pytest.approx(2 / 2)


def test_a_run_in_which_all_failed_has_errors_and_no_latencies():
    figures = runs_figures([LoadRun([sample(0, [], failure=FULL)], 1)], GoodputLimits(ttft_ms=1))
    assert figures["tokens_per_s"] == 0
    assert figures["ttft_ms"] is None
    assert figures["goodput"]["share"] == 0


def test_the_steady_part_of_a_run_is_while_every_worker_has_a_request():
    # Two workers; the second one is alone from 4 s on, and its tokens there do not count.
    run = LoadRun([sample(0, [1, 2, 3, 4]), sample(1, [2, 4, 6, 8])], 2)
    assert run.tokens_per_s == pytest.approx(8 / 8)
    assert run.steady_tokens_per_s == pytest.approx((3 + 2) / 3)
    assert LoadRun(run.samples).steady_tokens_per_s is None
    assert LoadRun(run.samples, 3).steady_tokens_per_s is None


def test_acceptance_and_cached_tokens_are_of_all_requests_together():
    run = LoadRun(
        [
            sample(0, [1.0], steps=4, accepted=6, plain=0, cached=10),
            sample(0, [1.0], steps=1, accepted=0, plain=5),
        ]
    )
    figures = runs_figures([run], GoodputLimits())
    assert figures["mean_acceptance_length"] == pytest.approx(1 + 6 / 5)
    assert figures["speculative_share"] == pytest.approx(0.5)
    assert (figures["cached_tokens"], figures["prompt_tokens"]) == (10, 20)


def test_ratios_are_of_runs_that_were_neighbours():
    assert paired([2.0, 6.0, None], [1.0, 2.0, 5.0])["median"] == 2.5
    assert paired([2.0, 6.0, None], [1.0, 2.0, 5.0])["count"] == 2
    assert paired([None], [1.0]) is None


def test_the_better_of_the_baselines_is_the_better_each_time():
    assert better([[1.0, 4.0, 2.0], [3.0, 2.0, None]]) == [3.0, 4.0, None]
    found = point_ratios({"plain": [1.0, 4.0], "auto": [3.0, 4.0], "forced": [2.0, 2.0]})
    assert {name: at["median"] for name, at in found["ratios"]["auto"].items()} == {
        "plain": 2.0,
        "forced": 1.75,
        "better": 1.25,
    }


def test_without_auto_it_is_forced_that_is_measured_and_alone_there_is_no_ratio():
    assert (
        point_ratios({"forced": [2.0], "plain": [1.0]})["ratios"]["forced"]["plain"]["median"] == 2
    )
    assert point_ratios({"auto": [1.0]}) == {"ratios": {}}


def test_outputs_are_compared_with_those_of_the_prompt_alone():
    samples = [
        sample(0, [1, 2], name=1, tokens=(5, 6)),
        sample(0, [1, 2], name=2, tokens=(5, 7)),
        sample(0, [1], name=2, tokens=(5,)),
        sample(0, [1], name=3, tokens=(1,), failure=FULL),
    ]
    assert identity(samples, {1: (5, 6), 2: (5, 6)}, is_expected=True) == {
        "identical": 1,
        "outputs": 3,
        "expected": True,
        "differences": [{"question_id": 2, "position": 1}],
    }


def test_time_per_token_in_a_window_counts_the_part_of_each_wait_that_lies_in_it():
    # A token each second; between 3 and 7 s nothing came.
    one = sample(0, [1, 2, 3, 7, 8])
    assert time_per_token([one], Window(0, 3)) == pytest.approx(1.0)
    assert time_per_token([one], Window(3, 7)) == pytest.approx(4.0)
    assert time_per_token([one], Window(4, 5)) == pytest.approx(4.0)
    assert time_per_token([one], Window(7, 99)) == pytest.approx(1.0)
    assert time_per_token([one], Window(8, 99)) is None


def test_sessions_are_put_together_by_their_tokens_and_chunks_by_theirs():
    fast = sample(0, [0, 1, 2], counts=[1, 4, 4])
    slow = sample(0, [0, 2])
    assert time_per_token([fast, slow], Window(0, 2)) == pytest.approx(4 / 9)


def test_the_longest_gap_is_of_waits_that_reach_into_the_window():
    one = sample(0, [1, 2, 3, 7, 8])
    assert longest_gap([one], Window(0, 3)) == 1
    assert longest_gap([one], Window(2.5, 4)) == 4
    assert longest_gap([one], Window(9, 10)) is None
    with pytest.raises(InvalidRequest, match="ends before it starts"):
        Window(2, 1)


def test_interference_is_measured_before_during_and_after():
    running = sample(0, [1, 2, 3, 6, 7, 8])
    prompt = sample(3, [6], name="long")
    found = interference_figures(
        {Point("concurrency", 1): {"auto": [InterferenceRun([running], 1.0, 8.0, prompt)]}}
    )
    of = found["points"][0]["arms"]["auto"]
    assert [of[f"{name}_ms"] for name in ("before", "during", "after")] == [1000, 3000, 1000]
    assert (of["ratio"]["median"], of["intruder_ttft_ms"]) == (3.0, 3000)
    assert report.interference_table(found).row_count == 1


def test_a_long_prompt_that_failed_is_counted_and_makes_no_figures():
    lost = InterferenceRun([sample(0, [1, 2])], 1.0, 2.0, sample(1, [], failure=FULL))
    found = interference_figures({Point("concurrency", 1): {"auto": [lost]}})
    of = found["points"][0]["arms"]["auto"]
    assert (of["ratio"], of["errors"]) == (None, {"CapacityError": 1})
    assert report.remarks(found) == ["concurrency 1, auto: 1 CapacityError: there is no room"]


def whole():
    """Figures of two points and two configurations, with a question each."""
    one, two = Point("concurrency", 1), Point("concurrency", 2)
    methods = parse_request_methods("plain,auto")
    plan = ServePlan((one, two), methods, (Question(1, "c", ("q",)),), repeats=2)
    slow = [LoadRun([sample(0, [1, 2])], 1)] * 2
    fast = [LoadRun([sample(0, [0.5, 1], steps=1, accepted=1)], 1)] * 2
    runs = {one: {"plain": slow, "auto": fast}, two: {"plain": fast, "auto": fast}}
    return serve_figures(plan, runs, {1: (0, 9)})


def test_speed_at_every_point_is_also_that_of_one_plain_session():
    points = whole()["points"]
    found = [
        point["arms"][name]["over_one_plain"]["median"]
        for point in points
        for name in point["arms"]
    ]
    assert found == [1.0, 2.0, 2.0, 2.0]


def test_every_table_has_a_row_for_each_point_and_arm():
    figures = whole()
    assert report.load_table(figures).row_count == 4
    assert report.latency_table(figures).row_count == 4 * 4
    assert report.ratio_table(figures).row_count == 2
    assert (
        "concurrency 2, auto: other tokens than alone in question 1 at token 1"
        in report.remarks(figures)
    )


def test_plots_have_a_line_for_each_arm(tmp_path):
    figures = whole()
    assert report.curves(figures["points"], "tokens-per-s") == {
        "plain": [(1, 1), (2, 2)],
        "auto": [(1, 2), (2, 2)],
    }
    assert list(report.curves(figures["points"], "ttft")) == [
        "plain p50",
        "auto p50",
        "plain p99",
        "auto p99",
    ]
    written = report.save_curves(figures, tmp_path / "plots")
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(
        path.name for path in written
    )
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
