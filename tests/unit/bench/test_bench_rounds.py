"""What a round costs: the parts add up, and everybody is asked in turn."""

import pytest

from slipstream.bench.harness import TurnPlan, run_in_turn
from slipstream.bench.questions import Question
from slipstream.bench.rounds import parts_of, remarks, rounds_figures
from slipstream.core.request.results import Timings
from slipstream.core.request.stats import SpeculationStats
from support.models import bench_files

REMOTE = Timings(
    prefill_s=1.0,
    decode_s=20.0,
    draft_s=6.0,
    verify_s=12.0,
    draft_service_s=5.0,
    draft_engine_s=2.0,
    kv_wait_s=0.5,
    target_service_s=10.0,
    target_engine_s=9.0,
    serialisation_s=1.0,
)
LOCAL = Timings(prefill_s=1.0, decode_s=10.0, draft_s=2.0, verify_s=7.0)


def sample(tokens=(1, 2, 3), timings=LOCAL, *, question_id=1, wall_s=12.0, fallbacks=()):
    speculation = SpeculationStats(4, 1, 9, 3, 5, (), (), (), {}, {}, True, dict(fallbacks))
    return bench_files.sample(tokens, timings, speculation, wall_s=wall_s, question_id=question_id)


def test_each_part_is_what_its_inner_parts_leave_and_they_add_up_to_all_of_decoding():
    assert sum(parts_of([REMOTE, LOCAL]).values()) == pytest.approx(30.0)
    assert parts_of([REMOTE]) == {
        "draft_engine": 2.0,
        "kv_wait": 0.5,
        "draft_service": 2.5,
        "draft_wire": 0.5,
        "target_engine": 9.0,
        "target_service": 1.0,
        "target_wire": 1.5,
        "serialisation": 1.0,
        "rest": 2.0,
    }


def test_speed_is_what_the_caller_sees_and_its_ratio_is_to_the_embedded_engine():
    of = rounds_figures(
        {
            "embedded": [sample(wall_s=12.0), sample(question_id=2, wall_s=18.0)],
            "distributed": [sample(wall_s=20.0), sample(question_id=2, wall_s=40.0)],
        }
    )
    assert of["embedded"]["tokens_per_s"] == pytest.approx(6 / 30)
    assert of["distributed"]["ratio"] == pytest.approx(0.5)
    assert of["distributed"]["ratio_decode"] == pytest.approx(1.0)
    assert of["distributed"]["outside_ms"] == pytest.approx(1000 * (60 - 22) / 2)
    assert of["distributed"]["rounds"] == 10


def test_other_tokens_are_found_by_question_and_position_and_rounds_without_a_draft_reported():
    of = rounds_figures(
        {
            "embedded": [sample((1, 2, 3)), sample((4, 5), question_id=2)],
            "distributed": [
                sample((4, 5), question_id=2),
                sample((1, 9, 3), fallbacks={"unavailable": 2, "late": 1}),
            ],
        }
    )
    assert of["distributed"]["identical"] == 1
    assert of["distributed"]["differences"] == [{"question_id": 1, "position": 1}]
    assert remarks(of) == [
        "distributed: other tokens than embedded in question 1 at token 1",
        "distributed: rounds without a draft: 2 unavailable, 1 late",
    ]


def test_every_question_goes_through_all_before_the_next_and_the_order_moves_on():
    log, done, ticks = [], [], iter(range(100))
    questions = [Question(number, "c", (f"q{number}", "more")) for number in range(3)]

    def ask(name):
        return lambda text, max_tokens: log.append((name, int(text[1:]), max_tokens))

    asks = {name: ask(name) for name in ("a", "b")}
    plan = TurnPlan(50, 1, questions=tuple(questions))
    samples = run_in_turn(asks, plan, advance=done.append, clock=lambda: next(ticks))
    assert log[:2] == [("a", 0, 32), ("b", 0, 32)]
    assert log[2:] == [
        (name, number, 50) for number, names in enumerate(("ab", "ba", "ab")) for name in names
    ]
    assert [at.question.question_id for at in samples["b"]] == [0, 1, 2]
    assert all(at.wall_s == 1 for at in samples["a"])
    assert len(done) == len(log)
