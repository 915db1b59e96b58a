"""Load: what a run sends, how answers are compared, and what is refused."""

import pytest

from slipstream.bench.figures import paired
from slipstream.bench.load import Answer, EngineUnderTest, LoadPlan, measure_load, remarks
from slipstream.bench.questions import Question
from slipstream.core.errors import CapacityError
from support.commands import refusal

QUESTIONS = tuple(Question(at, "ab"[at % 2], (f"prompt {at}",)) for at in range(5))


async def test_every_repeat_goes_through_all_loads_and_the_order_of_engines_moves_on():
    log, sent = [], {"plain": [], "auto": []}

    def engine(name):
        async def send(question, max_tokens):
            sent[name].append(question.question_id)
            return Answer(max_tokens, question.turns[0])

        return EngineUnderTest(name, send)

    plan = LoadPlan("1,2", repeats=2)
    plain, auto = engine("plain"), engine("auto")
    figures = await measure_load(
        plan, QUESTIONS, [plain, auto], engine("auto").send, advance=log.append
    )
    assert log == ["plain", "auto"] * 2 + ["auto", "plain"] * 2
    for level in figures["levels"]:
        for of in level["engines"].values():
            assert of["identical"] == of["requests"] == 2 * 2 * level["users"]
    mixed = [0, 1, 2, 3, 4]  # by category in turn; the second repeat goes on where the first ended
    assert sent["plain"] == [0, *mixed[:2], *mixed[:4], *mixed[2:4], *(mixed * 2)[4:8]]


async def test_an_answer_that_load_has_changed_is_named_where_identity_is_promised():
    async def alone(question, max_tokens):
        return Answer(2, (5, 6))

    async def changed(question, max_tokens):
        return Answer(2, (5, 7) if question.question_id == 1 else (5, 6))

    engines = [EngineUnderTest("plain", alone, True), EngineUnderTest("auto", changed, True)]
    engines.append(EngineUnderTest("sampled", changed))
    plan = LoadPlan("2", repeats=1)
    figures = await measure_load(plan, QUESTIONS, engines, alone, advance=lambda name: None)
    (level,) = figures["levels"]
    assert [of["identical"] for of in level["engines"].values()] == [4, 3, 3]
    assert list(remarks(figures)) == [
        "auto with 2 users differs from the prompts alone: 1 at token 1"
    ]


async def test_a_request_that_fails_ends_the_benchmark():
    async def send(question, max_tokens):
        if question.question_id == 3:
            raise CapacityError("the router is full")
        return Answer(1, (5,))

    plan, engine = LoadPlan("2", repeats=1), EngineUnderTest("plain", send)
    with pytest.raises(CapacityError, match="the router is full"):
        await measure_load(plan, QUESTIONS, [engine], send, advance=lambda name: None)


def test_ratios_are_of_runs_that_were_neighbours():
    found = paired([2.0, 6.0, 9.0], [1.0, 2.0, 0.0])
    assert found == {"median": 2.5, "low": 2.0, "high": 3.0}
    assert paired([1.0], [0.0]) is None


BAD = [
    (["--concurrency", "0"], "a concurrency is 0"),
    (["--concurrency", "two"], "concurrency is 'two', but must be numbers"),
    (["--concurrency", "2,2"], "concurrency '2' is named twice"),
    (["--methods", "vanilla:x"], "method 'vanilla:x' needs an engine of its own"),
    (["--tls"], "--tls goes with --router only"),
]


@pytest.mark.parametrize(("flags", "reason"), BAD)
def test_nonsense_is_refused_in_one_sentence(flags, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_OFFLINE", "1")
    assert reason in refusal(capsys, "bench", "serve", *flags)
