"""Short sessions and what they leave behind: who is left when, and what readings say."""

import asyncio
from dataclasses import replace
from itertools import islice

import pytest

from slipstream.bench.leaks.findings import Course, Ends, Moment, lines
from slipstream.bench.leaks.footprint import Footprint, parse_status
from slipstream.bench.leaks.plan import CANCEL_AFTER_S, PARTS, LeakPlan
from slipstream.bench.leaks.report import leaks_table
from slipstream.bench.leaks.run import SETTLE_S, settle
from slipstream.bench.questions import Question
from slipstream.bench.serve.arrivals import Pace
from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest

MIB = 1 << 20
QUESTIONS = tuple(Question(number, "ab"[number % 2], (f"q{number}",)) for number in range(3))
FLAT = Footprint(
    resident_bytes=100 * MIB,
    num_objects=5000,
    num_tasks=0,
    num_threads=3,
    num_files=9,
    session_kv_bytes=0,
    prefix_kv_bytes=2 * MIB,
    draft_kv_bytes=0,
)


def course(ends=None, **changes):
    """2,000 sessions in which nothing changes but the reading at some parts."""
    at = {int(name.removeprefix("at_")): change for name, change in changes.items()}
    moments = [Moment(part * 100, replace(FLAT, **at.get(part, {}))) for part in range(PARTS + 1)]
    return Course(moments, ends or Ends(), 1.0)


def visits(count=1000, **changes):
    return list(islice(LeakPlan(QUESTIONS, **changes).visits(), count))


def test_the_same_seed_leaves_the_same_sessions_and_another_seed_others():
    assert visits(seed=3) == visits(seed=3)
    assert visits(seed=3) != visits(seed=4)


def test_the_share_that_is_left_is_left_after_any_number_of_tokens_short_of_all():
    left = [at for at in visits(3000, max_new_tokens=5) if at.leave_after is not None]
    assert 0.27 < len(left) / 3000 < 0.33
    assert {at.leave_after for at in left} == {0, 1, 2, 3, 4}
    assert all((at.cancel_after_s is None) == (at.leave_after > 0) for at in left)
    assert {at.cancel_after_s for at in left} - {None} == set(CANCEL_AFTER_S)


@pytest.mark.parametrize(("share", "left"), [(0.0, False), (1.0, True)])
def test_nobody_or_everybody_can_be_left(share, left):
    assert {at.leave_after is not None for at in visits(cancel_share=share)} == {left}


def test_every_question_is_asked_with_and_without_drafts_in_all_rounds():
    asked = {(at.question.question_id, at.drafts) for at in visits(6)}
    assert asked == {(number, drafts) for number in range(3) for drafts in (False, True)}


@pytest.mark.parametrize("num_sessions", [20, 39, 5000])
def test_the_parts_are_all_sessions_and_none_is_empty(num_sessions):
    parts = LeakPlan(QUESTIONS, num_sessions).parts
    assert (len(parts), sum(parts)) == (PARTS, num_sessions)
    assert min(parts) >= 1
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--num-sessions", "19"], "num_sessions is 19, but must be at least 20"),
        (["--concurrency", "0"], "concurrency is 0, but must be from 1 to 4096"),
        (["--cancel-share", "1.5"], "cancel_share is 1.5, but must be from 0 to 1"),
        (["--cancel-share", "nan"], "cancel_share is nan, but must be from 0 to 1"),
        (["--max-new-tokens", "0"], "max_new_tokens is 0, but must be at least 1"),
        (["--warmup", "-1"], "warmup is -1, but must be at least 0"),
    ],
)
def test_nonsense_is_refused_before_anything_is_loaded(flags, reason, capsys):
    assert exit_code(["bench", "leaks", "--target", "no-such-model", *flags]) == 2
    assert reason in capsys.readouterr().err


def test_a_plan_refuses_it_too():
    with pytest.raises(InvalidRequest, match="concurrency is 5000"):
        LeakPlan(QUESTIONS, concurrency=5000)


def test_linux_says_resident_memory_in_kibibytes():
    status = parse_status("Name:\tpython\nVmRSS:\t  2048 kB\nThreads:\t7\nCpus_allowed_list:\t0\n")
    assert (status.resident_bytes, status.num_threads) == (2 * MIB, 7)


def test_growth_is_from_a_fifth_to_the_end_whatever_came_before():
    grown = course(
        at_0={"resident_bytes": MIB},
        at_4={"resident_bytes": 96 * MIB},
        at_20={"resident_bytes": 104 * MIB, "num_objects": 5160},
    )
    assert grown.growth["resident_bytes"] == 8 * MIB / 1.6
    assert grown.growth["num_objects"] == 100
    assert grown.is_clean
    assert "from session 400 to 2000 resident memory changed by +5.00 MiB per 1,000" in "\n".join(
        lines(grown.figures())
    )


def test_what_is_kept_for_prefixes_is_not_held_by_sessions():
    kept = course(at_20={"prefix_kv_bytes": 9 * MIB})
    assert (kept.held, kept.is_clean) == ([], True)
    assert lines(kept.figures())[1] == "no session that has ended holds keys, values or tasks"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("session_kv_bytes", "3 bytes of keys and values in use after 700 sessions"),
        ("draft_kv_bytes", "3 bytes of the draft's keys and values after 700 sessions"),
        ("num_tasks", "3 asyncio tasks after 700 sessions"),
    ],
)
def test_what_ended_sessions_hold_is_found_at_the_first_reading_that_shows_it(name, said):
    found = course(at_7={name: 3}, at_9={name: 4})
    assert found.held == [said]
    assert not found.is_clean
    assert lines(found.figures())[1] == f"sessions that have ended hold {said}"


def test_failures_are_no_clean_run():
    ends = Ends()
    ends.errors["CapacityError"] = 2
    ends.examples["CapacityError"] = "it is full"
    failed = course(ends)
    assert (failed.held, failed.is_clean) == ([], False)
    assert lines(failed.figures())[-1] == "2 failed with CapacityError: it is full"


def test_the_table_has_the_start_every_quarter_and_the_end():
    shown = leaks_table(course().figures())
    assert list(shown.columns[0].cells) == ["start", "25 %", "50 %", "75 %", "end"]
    assert list(shown.columns[1].cells) == ["0", "500", "1000", "1500", "2000"]


async def test_tasks_are_waited_for_but_not_for_ever():
    now = [0.0]
    gate = asyncio.Event()
    others = asyncio.all_tasks()

    async def sleep(seconds):
        now[0] += seconds
        await asyncio.sleep(0)

    pace = Pace(lambda: now[0], sleep)
    stuck = asyncio.create_task(gate.wait())
    await settle(others, pace)
    assert now[0] >= SETTLE_S
    gate.set()
    began = now[0]
    await settle(others, pace)
    assert stuck.done()
    assert now[0] - began < SETTLE_S
