"""Load: users come as scheduled or when answered, and what comes of their requests is kept."""

import asyncio
import random
from itertools import count, cycle, pairwise

import pytest

from slipstream.bench.questions import Question
from slipstream.bench.serve.interference import interfere, long_prompt
from slipstream.bench.serve.load import (
    AFTER_FAILURE_S,
    LoadClock,
    LoadRequest,
    closed_loop,
    open_loop,
    poisson_times,
    schedule,
    send,
)
from slipstream.bench.serve.sample import Failure, LoadSample, Mark
from slipstream.core.errors import CapacityError
from slipstream.core.request.options import SpeculationOptions
from slipstream.core.request.results import Chunk, RequestStats, Timings
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.types import FinishReason, SamplingParams

STATS = RequestStats(
    3, 0, 3, Timings(1, 1, 0, 0), SpeculationStats(0, 0, 0, 0, 0, (), (), (), {}, {}, True)
)


class FakeTime:
    """Time that passes only where somebody sleeps; the sleeper who is first wakes first."""

    def __init__(self):
        self.now = 0.0
        self._sleepers = []
        self._numbers = count()

    @property
    def pace(self):
        return LoadClock(lambda: self.now, self.sleep)

    async def sleep(self, seconds):
        woken = asyncio.Event()
        self._sleepers.append((self.now + seconds, next(self._numbers), woken))
        await woken.wait()

    async def run(self, work):
        """The result of the work, as time passes for it."""
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(20):  # everybody goes as far as they can without time
                await asyncio.sleep(0)
            if self._sleepers and not task.done():
                self._sleepers.sort()
                at, _, woken = self._sleepers.pop(0)
                self.now = max(self.now, at)
                woken.set()
        return task.result()


def questions(most):
    return [Question(number, "c", (f"q{number}",)) for number in range(most)]


def answering(time, seconds, log, failure=None):
    """Somebody who answers each question after so many seconds."""

    async def answer(question, due_s):
        log.append((time.now, question.question_id))
        sent_s = time.now
        await time.sleep(seconds)
        return LoadSample(question.question_id, due_s, sent_s, time.now, failure=failure)

    return answer


def test_arrivals_are_those_of_the_seed():
    first, again, other = (schedule(2.0, random.Random(seed), count=50) for seed in (7, 7, 8))
    assert first == again != other
    assert all(after > before for before, after in pairwise(first))


def test_a_higher_rate_is_the_same_arrivals_in_less_time():
    slow = schedule(0.5, random.Random(3), count=20)
    fast = schedule(2.0, random.Random(3), count=20)
    assert fast == pytest.approx([at / 4 for at in slow])


def test_gaps_between_arrivals_are_exponential():
    times = poisson_times(4.0, random.Random(0))
    gaps = [after - before for before, after in pairwise(next(times) for _ in range(20_001))]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 4, rel=0.03)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)


def test_a_schedule_by_time_holds_all_arrivals_within_it():
    within = schedule(3.0, random.Random(1), seconds=10.0)
    assert within == [at for at in schedule(3.0, random.Random(1), count=100) if at < 10.0]


async def test_users_of_an_open_loop_come_on_time_however_slow_the_answers_are():
    time, log = FakeTime(), []
    work = open_loop(
        [1.0, 1.5, 4.0], iter(questions(9)), answering(time, 30.0, log), pace=time.pace
    )
    samples = await time.run(work)
    assert log == [(1.0, 0), (1.5, 1), (4.0, 2)]
    assert [(sample.due_s, sample.ended_s) for sample in samples] == [
        (1.0, 31.0),
        (1.5, 31.5),
        (4.0, 34.0),
    ]


async def test_a_sleep_that_ends_early_sends_nobody_early():
    time, log = FakeTime(), []

    async def short(seconds):
        await time.sleep(seconds / 2 if seconds > 0.1 else seconds)

    pace = LoadClock(time.pace.clock, short)
    await time.run(open_loop([3.0], iter(questions(1)), answering(time, 1.0, log), pace=pace))
    assert log[0][0] >= 3.0


async def test_users_of_a_closed_loop_ask_again_when_answered():
    time, log = FakeTime(), []
    work = closed_loop(2, iter(questions(5)), answering(time, 10.0, log), pace=time.pace)
    samples = await time.run(work)
    assert log == [(0.0, 0), (0.0, 1), (10.0, 2), (10.0, 3), (20.0, 4)]
    assert len(samples) == 5


async def test_a_closed_loop_with_a_time_asks_nothing_after_it_and_waits_for_the_last_answers():
    time, log = FakeTime(), []
    answer = answering(time, 10.0, log)
    work = closed_loop(1, cycle(questions(2)), answer, pace=time.pace, seconds=25.0)
    samples = await time.run(work)
    assert [at for at, _ in log] == [0.0, 10.0, 20.0]
    assert samples[-1].ended_s == 30.0


async def test_a_user_who_was_refused_pauses_before_the_next_request():
    time, log = FakeTime(), []
    answer = answering(time, 0.0, log, failure=Failure("CapacityError", "full"))
    samples = await time.run(closed_loop(1, iter(questions(3)), answer, pace=time.pace))
    assert [at for at, _ in log] == pytest.approx([0, AFTER_FAILURE_S, 2 * AFTER_FAILURE_S])
    assert len(samples) == 3


class Answers:
    """A client whose streams bring these chunks, one a second, and then this error."""

    def __init__(self, time, chunks, error=None):
        self.time, self.chunks, self.error = time, chunks, error
        self.asked = []
        self.num_closed = 0

    def stream(self, prompt, **options):
        self.asked.append((prompt, options))
        return self

    async def __aenter__(self):
        return self._chunks()

    async def __aexit__(self, *_):
        self.num_closed += 1

    async def _chunks(self):
        for chunk in self.chunks:
            self.time.now += 1
            yield chunk
        if self.error is not None:
            raise self.error


ASK = LoadRequest(5, "hello", 9, SamplingParams(seed=3), SpeculationOptions())
CHUNKS = [
    Chunk("a", (1,)),
    Chunk("", ()),
    Chunk("bc", (2, 3)),
    Chunk("", (), FinishReason.STOP, STATS),
]


async def test_a_request_is_kept_as_its_caller_sees_it():
    time = FakeTime()
    client = Answers(time, CHUNKS)
    sample = await send(client, ASK, due_s=-1.0, clock=lambda: time.now)
    assert client.asked == [
        (
            "hello",
            {"max_tokens": 9, "sampling": ASK.sampling, "speculation": ASK.speculation},
        )
    ]
    assert sample == LoadSample(
        5, -1.0, 0.0, 4.0, (Mark(1.0, 1), Mark(3.0, 2)), (1, 2, 3), STATS, None
    )
    assert sample.is_finished


async def test_an_error_is_a_result_with_its_name_and_what_came_before_it():
    time = FakeTime()
    client = Answers(time, CHUNKS[:1], CapacityError("32 sessions are all there is room for"))
    sample = await send(client, ASK, due_s=0.0, clock=lambda: time.now)
    assert sample.failure == Failure("CapacityError", "32 sessions are all there is room for")
    assert (sample.num_tokens, sample.is_finished) == (1, False)


async def test_a_bug_is_no_result():
    time = FakeTime()
    client = Answers(time, CHUNKS[:1], RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await send(client, ASK, due_s=0.0, clock=lambda: time.now)


async def test_an_answer_that_is_left_is_closed_and_is_not_finished():
    time = FakeTime()
    client = Answers(time, CHUNKS)
    sample = await send(client, ASK, due_s=0.0, clock=lambda: time.now, goes_on=lambda num: False)
    assert (client.num_closed, sample.num_tokens, sample.is_finished) == (1, 1, False)


def sessions(time, log, *, fails_at=None):
    """Sessions that get a token a second each, forever; one may fail."""

    async def ask(question, *, goes_on):
        start, marks = time.now, []
        while True:
            await time.sleep(1.0)
            if fails_at is not None and question.question_id == 1 and time.now >= fails_at:
                failure = Failure("Unavailable", "gone")
                return LoadSample(1, start, start, time.now, tuple(marks), failure=failure)
            marks.append(Mark(time.now, 1))
            log.append(time.now)
            if not goes_on(1):
                return LoadSample(question.question_id, start, start, time.now, tuple(marks))

    return ask


def coming(time, log):
    async def come():
        log.append("came")
        came_s = time.now
        await time.sleep(5.5)
        return LoadSample("intruder", came_s, came_s, time.now, (Mark(time.now, 1),), (1,), STATS)

    return come


async def test_a_long_prompt_comes_when_all_sessions_run_and_they_run_on_after_its_first_token():
    time, log = FakeTime(), []
    work = interfere(
        3,
        4,
        cycle(questions(9)),
        sessions(time, log),
        coming(time, log),
        clock=lambda: time.now,
    )
    found = await time.run(work)
    assert log.index("came") >= 3 + 3 * 4
    came_s = found.long_prompt.sent_s
    assert found.begun_s <= came_s - 3
    first_s = found.long_prompt.marks[0].at_s
    after = [at for at in log[log.index("came") + 1 :] if at > first_s]
    assert 3 * 4 <= len(after) <= 3 * 6
    assert len(found.samples) == 3


async def test_sessions_that_fail_end_the_run_without_a_long_prompt():
    time, log = FakeTime(), []
    ask = sessions(time, log, fails_at=3.0)
    work = interfere(2, 50, cycle(questions(9)), ask, coming(time, log), clock=lambda: time.now)
    found = await time.run(work)
    assert found.long_prompt is None
    assert found.windows() == {}
    assert [sample.failure is None for sample in found.samples].count(False) == 1


def test_long_prompts_begin_differently_and_have_the_length_they_are_to_have():
    words = list(range(300))
    prompts = [long_prompt(words, 1000, number=number) for number in range(20)]
    assert {len(prompt) for prompt in prompts} == {1000}
    assert len({prompt[0] for prompt in prompts}) == 20
