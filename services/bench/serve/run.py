"""Runs of every method at every point through one client, in turn."""

import random
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle
from typing import TypeVar

from slipstream.bench.harness import rotated
from slipstream.bench.methods import Method
from slipstream.bench.questions import Question
from slipstream.bench.serve.figures import References, Runs
from slipstream.bench.serve.interference import (
    InterferenceRun,
    InterferenceRuns,
    interfere,
    long_prompt,
)
from slipstream.bench.serve.load import (
    GoesOn,
    LoadRequest,
    ServeLoad,
    closed_loop,
    open_loop,
    schedule,
)
from slipstream.bench.serve.plan import Point, ServePlan
from slipstream.bench.serve.sample import LoadRun, LoadSample
from slipstream.core.request.options import Mode, SpeculationOptions

T = TypeVar("T")
Turn = tuple[Point, Method, int]
"""Point, method and repeat of a run."""

LONG_PROMPT = "intruder"
WINDOW_TOKENS = 32
"""Tokens of each session, on average, before a long prompt and after its first token."""
_LONG_PROMPT_OUTPUT = 1


async def run_serve(load: ServeLoad) -> Runs:
    """Measure every run; each repeat goes through all points and methods before the next.

    The order of methods moves on by one from repeat to repeat. Raises what refuses a
    method or a prompt before anything is measured; later failures are results.
    """

    async def measure(turn: Turn, number: int) -> LoadRun:
        return LoadRun(await _run(load, turn), turn[0].concurrency)

    return await _in_turn(load, measure)


async def run_interference(load: ServeLoad, num_tokens: int) -> InterferenceRuns:
    """Measure the same with a long prompt of so many tokens that comes among running sessions."""
    words: list[int] = []
    for question in load.plan.questions:
        words += await load.client.tokenize(question.turns[0], raw=True)

    async def measure(turn: Turn, number: int) -> InterferenceRun:
        prompt = long_prompt(words, num_tokens, number=number)
        return await _interfere(load, turn, prompt)

    return await _in_turn(load, measure)


async def _in_turn(
    load: ServeLoad, measure: Callable[[Turn, int], Awaitable[T]]
) -> dict[Point, dict[str, list[T]]]:
    await load.prepare()
    plan = load.plan
    runs: dict[Point, dict[str, list[T]]] = {
        point: {method.name: [] for method in plan.methods} for point in plan.points
    }
    for number, turn in enumerate(turns(plan)):
        point, method, _ = turn
        runs[point][method.name].append(await measure(turn, number))
        load.advance(method.name)
    return runs


async def find_references(load: ServeLoad, runs: Runs) -> References:
    """Decode every question that was sent, plainly, one by one, by the same engine."""
    measured = [of for by_method in runs.values() for of in by_method.values()]
    sent = {sample.question_id for of in measured for run in of for sample in run.samples}
    found = {}
    for question in load.plan.questions:
        if question.question_id in sent:
            result = await load.client.generate(
                question.turns[0],
                max_tokens=load.plan.max_new_tokens,
                sampling=load.plan.sampling,
                speculation=SpeculationOptions(mode=Mode.OFF),
            )
            found[question.question_id] = result.token_ids
    return found


def turns(plan: ServePlan) -> Iterator[Turn]:
    """Yield every run, in order."""
    for repeat in range(plan.repeats):
        for point in plan.points:
            for method in rotated(plan.methods, repeat):
                yield point, method, repeat


async def _run(load: ServeLoad, turn: Turn) -> list[LoadSample]:
    point, method, repeat = turn
    plan, send = load.plan, load.sender(method)
    questions = plan.questions_of(point, repeat)
    if point.concurrency is not None:
        return await closed_loop(
            point.concurrency, questions, send, pace=load.pace, seconds=plan.amount.seconds
        )
    # The same users for every method, others in every repeat.
    rng = random.Random(f"{plan.sampling.seed}/{repeat}")
    count, seconds = plan.amount.num_requests(point), plan.amount.seconds
    times = schedule(point.value, rng, count=count, seconds=seconds)
    return await open_loop(times, questions, send, pace=load.pace)


async def _interfere(load: ServeLoad, turn: Turn, prompt: tuple[int, ...]) -> InterferenceRun:
    (point, method, _), clock = turn, load.pace.clock
    assert point.concurrency is not None

    async def send(question: Question, *, goes_on: GoesOn) -> LoadSample:
        return await load.send(load.request(question, method), clock(), goes_on=goes_on)

    async def send_prompt() -> LoadSample:
        sampling, options = load.plan.sampling, method.options
        request = LoadRequest(LONG_PROMPT, prompt, _LONG_PROMPT_OUTPUT, sampling, options)
        return await load.send(request, clock())

    size, questions = point.concurrency, cycle(load.plan.questions)
    return await interfere(size, WINDOW_TOKENS, questions, send, send_prompt, clock=clock)
