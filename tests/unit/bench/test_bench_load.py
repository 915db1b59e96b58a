"""Load: what a run sends, how answers are compared, and what is refused."""

from collections import Counter

import pytest

from slipstream.bench.figures import paired
from slipstream.bench.load import (
    Answer,
    EngineUnderTest,
    LoadPlan,
    LoadRun,
    load_figures,
    measure_load,
    remarks,
)
from slipstream.bench.questions import Question
from slipstream.core.request.stats import SpeculationStats
from support.commands import refusal

QUESTIONS = tuple(Question(at, "ab"[at % 2], (f"prompt {at}",)) for at in range(5))
STATS = SpeculationStats(2, 1, 5, 4, 0, (), (), (), {}, {}, True)
ENGINES = tuple(EngineUnderTest(name, None, is_exact=True) for name in ("plain", "auto"))


def run(*answers, seconds=1.0, **errors):
    found = [(name, Answer(len(tokens), tokens, STATS)) for name, tokens in answers]
    return LoadRun(found, Counter(errors), seconds)


def test_repeats_go_on_in_the_questions_which_are_mixed_by_category():
    plan = LoadPlan("1,2")
    sent = [[at.question_id for at in plan.questions_of(QUESTIONS, 1, n)] for n in range(3)]
    assert sent == [[0, 1], [2, 3], [4, 0]]


async def test_every_repeat_goes_through_all_loads_and_the_order_of_engines_moves_on():
    log = []

    async def send(question, max_tokens):
        return Answer(max_tokens, question.turns[0])

    plan = LoadPlan("1,2", repeats=2)
    engines = [EngineUnderTest(name, send) for name in ("plain", "auto")]
    figures = await measure_load(plan, QUESTIONS, engines, send, advance=log.append)
    assert log == ["plain", "auto"] * 2 + ["auto", "plain"] * 2
    for level in figures["levels"]:
        for of in level["engines"].values():
            assert of["identity"]["identical"] == of["finished"] == 2 * 2 * level["users"]


def test_figures_are_of_all_runs_and_ratios_of_neighbours():
    runs = {
        "plain": [run((1, (5, 6)), seconds=1.0), run((1, (5, 6)), seconds=2.0)],
        "auto": [run((1, (5, 7)), seconds=0.5), run((1, (5, 6)), seconds=2.0, CapacityError=3)],
    }
    figures = load_figures(ENGINES, {8: runs}, {1: (5, 6)})
    ([level], base) = figures["levels"], figures["base"]
    of = level["engines"]["auto"]
    assert (base, level["users"]) == ("plain", 8)
    assert (of["tokens_per_s"], of["ratio"]["median"]) == (2.5, 1.5)
    assert (of["requests"], of["finished"], of["errors"]) == (5, 2, {"CapacityError": 3})
    assert (of["mean_acceptance_length"], of["rounds"], of["plain_rounds"]) == (3.0, 6, 2)
    assert level["engines"]["plain"]["ratio"]["median"] == 1
    assert list(remarks(figures)) == [
        "auto with 8 users differs from the prompts alone: 1 at token 1",
        "auto with 8 users: 3 failed with CapacityError",
    ]


def test_ratios_are_of_runs_that_were_neighbours():
    found = paired([2.0, 6.0, None], [1.0, 2.0, 5.0])
    assert found == {"median": 2.5, "low": 2.0, "high": 3.0}
    assert paired([None], [1.0]) is None


BAD = [
    (["--concurrency", "0"], "a concurrency is 0"),
    (["--concurrency", "two"], "concurrency is 'two', but must be numbers"),
    (["--concurrency", "2,2"], "concurrency '2' is named twice"),
    (["--repeats", "0"], "repeats is 0"),
    (["--requests-per-worker", "0"], "requests_per_worker is 0"),
    (["--methods", "vanilla:x"], "method 'vanilla:x' needs an engine of its own"),
    (["--tls"], "--tls goes with --router only"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD)
def test_nonsense_is_refused_in_one_sentence(flags, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_OFFLINE", "1")
    assert reason in refusal(capsys, "bench", "serve", *flags)
