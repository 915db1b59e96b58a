"""Drives every arm at every point through one client, in turn. Prints nothing."""

import random
from collections.abc import Iterator
from itertools import cycle

from slipstream.bench.questions import Question
from slipstream.bench.serve.arms import Arm
from slipstream.bench.serve.arrivals import open_loop, schedule
from slipstream.bench.serve.crowd import Crowd, intrude, intruder_prompt
from slipstream.bench.serve.figures import Runs
from slipstream.bench.serve.identity import References
from slipstream.bench.serve.intruder import Intrusion, Intrusions
from slipstream.bench.serve.load import Load
from slipstream.bench.serve.plan import IntruderPlan, Point, ServePlan
from slipstream.bench.serve.prepare import prepare
from slipstream.bench.serve.request import Ask, GoesOn
from slipstream.bench.serve.sample import Run, Sample
from slipstream.bench.serve.workers import closed_loop
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.prompt import Prompt

INTRUDER = "intruder"
_INTRUDER_OUTPUT = 1


async def run_serve(load: Load) -> Runs:
    """Every run; each repeat goes through all points and all arms before the next.

    The order of the arms moves on by one from repeat to repeat. Raises what refuses an arm or a
    prompt before anything is measured; later failures are results.
    """
    await prepare(load)
    runs: dict[Point, dict[str, list[Run]]] = {
        point: {arm.name: [] for arm in load.plan.arms} for point in load.plan.points
    }
    for point, arm, repeat in turns(load.plan):
        samples = await _run(load, point, arm, repeat=repeat)
        runs[point][arm.name].append(Run(samples, point.concurrency))
        load.advance(arm.name)
    return runs


async def run_intruders(load: Load, intruder: IntruderPlan) -> Intrusions:
    """The same, with a long prompt that comes among running sessions."""
    await prepare(load)
    runs: dict[Point, dict[str, list[Intrusion]]] = {
        point: {arm.name: [] for arm in load.plan.arms} for point in load.plan.points
    }
    words: list[int] = []
    for question in load.plan.questions:
        words += await load.client.tokenize(question.turns[0], raw=True)
    for number, (point, arm, _) in enumerate(turns(load.plan)):
        prompt = intruder_prompt(words, intruder.num_tokens, number=number)
        runs[point][arm.name].append(await _intrude(load, point, arm, prompt=prompt))
        load.advance(arm.name)
    return runs


async def find_references(load: Load, runs: Runs) -> References:
    """Plain decoding of every question that was asked, one after the other, by the same engine."""
    of_arms = [of for by_arm in runs.values() for of in by_arm.values()]
    samples = [sample for of in of_arms for run in of for sample in run.samples]
    asked = {sample.question_id for sample in samples}
    found = {}
    for question in load.plan.questions:
        if question.question_id in asked:
            result = await load.client.generate(
                question.turns[0],
                max_tokens=load.plan.max_new_tokens,
                sampling=load.plan.sampling,
                speculation=SpeculationOptions(mode=Mode.OFF),
            )
            found[question.question_id] = result.token_ids
    return found


def turns(plan: ServePlan) -> Iterator[tuple[Point, Arm, int]]:
    """Point, arm and repeat of every run, in order."""
    for repeat in range(plan.repeats):
        start = repeat % len(plan.arms)
        for point in plan.points:
            for arm in (*plan.arms[start:], *plan.arms[:start]):
                yield point, arm, repeat


async def _run(load: Load, point: Point, arm: Arm, *, repeat: int) -> list[Sample]:
    plan, ask = load.plan, load.sender(arm)
    asked = plan.asked(point, repeat)
    if point.concurrency is not None:
        return await closed_loop(
            point.concurrency, asked, ask, pace=load.pace, seconds=plan.amount.seconds
        )
    # The same users for every arm, others in every repeat.
    rng = random.Random(f"{plan.sampling.seed}/{repeat}")
    count, seconds = plan.amount.num_requests(point), plan.amount.seconds
    times = schedule(point.value, rng, count=count, seconds=seconds)
    return await open_loop(times, asked, ask, pace=load.pace)


async def _intrude(load: Load, point: Point, arm: Arm, *, prompt: Prompt) -> Intrusion:
    plan, clock = load.plan, load.pace.clock
    assert plan.intruder is not None
    assert point.concurrency is not None

    async def ask(question: Question, *, goes_on: GoesOn) -> Sample:
        return await load.send(load.ask(question, arm), clock(), goes_on=goes_on)

    async def come() -> Sample:
        long = Ask(INTRUDER, prompt, _INTRUDER_OUTPUT, plan.sampling, arm.options)
        return await load.send(long, clock())

    crowd = Crowd(point.concurrency, plan.intruder.window_tokens)
    return await intrude(crowd, cycle(plan.questions), ask, come, clock=clock)
