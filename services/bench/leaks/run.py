"""Sends short sessions, leaves some of them early, and reads memory between. Prints nothing."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from slipstream.bench.leaks.findings import (
    FINISHED,
    LEFT,
    LEFT_AT_ONCE,
    Course,
    Ends,
    Moment,
)
from slipstream.bench.leaks.footprint import Footprint
from slipstream.bench.leaks.plan import LeakPlan, Visit
from slipstream.bench.serve.arrivals import Pace
from slipstream.bench.serve.request import Ask, GoesOn, always, send
from slipstream.bench.serve.sample import Sample
from slipstream.client import AsyncClient
from slipstream.core.options import Mode, SpeculationOptions
from slipstream.core.types import SamplingParams

Read = Callable[[int], Footprint]
"""Reads what is held, told how many tasks there are."""
SETTLE_S = 10.0
_LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class LeakRun:
    """A plan, whom it goes through, and what reads the memory; `advance` is told of every part."""

    plan: LeakPlan
    client: AsyncClient
    read: Read
    advance: Callable[[str], None]
    pace: Pace = field(default_factory=Pace)


async def run_leaks(run: LeakRun) -> Course:
    """Warm up, then send all sessions in parts; memory is read when none runs.

    Python's collector leaves alone what there is after the warm-up: it is not to be counted, and a
    million objects need not be walked through for every reading.
    """
    others = asyncio.all_tasks()
    drafts = bool((await run.client.model_info()).drafters)
    visits = run.plan.visits()
    await _send_all(run, islice(visits, run.plan.warmup), Ends(), drafts=drafts)
    run.advance("warm-up")
    gc.collect()
    await settle(others, run.pace)
    gc.freeze()
    try:
        return await _watch(run, visits, others, drafts=drafts)
    finally:
        gc.unfreeze()


async def _watch(
    run: LeakRun, visits: Iterator[Visit], others: set["asyncio.Task[object]"], *, drafts: bool
) -> Course:
    ends, began = Ends(), run.pace.clock()
    moments = [Moment(0, await _read(run, others))]
    for size in run.plan.parts:
        await _send_all(run, islice(visits, size), ends, drafts=drafts)
        num_sessions = moments[-1].num_sessions + size
        moments.append(Moment(num_sessions, await _read(run, others)))
        run.advance("sessions")
    return Course(moments, ends, run.pace.clock() - began)


async def _send_all(run: LeakRun, visits: Iterator[Visit], ends: Ends, *, drafts: bool) -> None:
    async def work() -> None:
        for visit in visits:  # which all workers take from
            await _visit(run, visit, ends, drafts=drafts)

    async with asyncio.TaskGroup() as group:
        for _ in range(run.plan.concurrency):
            group.create_task(work())


async def _visit(run: LeakRun, visit: Visit, ends: Ends, *, drafts: bool) -> None:
    question, clock = visit.question, run.pace.clock
    mode = Mode.FORCED if visit.drafts and drafts else Mode.AUTO
    ask = Ask(
        question.question_id,
        question.turns[0],
        run.plan.max_new_tokens,
        SamplingParams(),
        SpeculationOptions(mode=mode),
    )
    sample = None
    try:
        async with asyncio.timeout(visit.cancel_after_s):
            goes_on = _until(visit.leave_after)
            sample = await send(run.client, ask, due_s=clock(), clock=clock, goes_on=goes_on)
    except TimeoutError:  # the user is gone
        pass
    _count(sample, ends)


def _until(leave_after: int | None) -> GoesOn:
    """Reads on until so many tokens have come."""
    if leave_after is None:
        return always
    num_read = 0

    def goes_on(num_tokens: int) -> bool:
        nonlocal num_read
        num_read += num_tokens
        return num_read < leave_after

    return goes_on


def _count(sample: Sample | None, ends: Ends) -> None:
    if sample is None:
        ends.counts[LEFT_AT_ONCE] += 1
    elif sample.failure is not None:
        ends.errors[sample.failure.name] += 1
        ends.examples.setdefault(sample.failure.name, sample.failure.sentence)
    else:
        ends.counts[FINISHED if sample.is_finished else LEFT] += 1


async def _read(run: LeakRun, others: set["asyncio.Task[object]"]) -> Footprint:
    """What is held when all has ended that sessions have begun, or does not within `SETTLE_S`."""
    gc.collect()
    await settle(others, run.pace)
    return run.read(len(asyncio.all_tasks() - others))


async def settle(others: set["asyncio.Task[object]"], pace: Pace) -> None:
    """Wait until there are no tasks but `others`, for a while."""
    until = pace.clock() + SETTLE_S
    while asyncio.all_tasks() - others and pace.clock() < until:
        await pace.sleep(_LOOK_S)
