"""Sends the same requests through two routers in turn, and compares. Prints nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from slipstream.bench.pairs.plan import PairPlan
from slipstream.bench.questions import Question
from slipstream.bench.serve.arrivals import Pace, Send
from slipstream.bench.serve.distributions import median_interval
from slipstream.bench.serve.ratios import paired
from slipstream.bench.serve.request import Ask, send
from slipstream.bench.serve.sample import Run, Sample
from slipstream.bench.serve.workers import closed_loop
from slipstream.client import AsyncClient
from slipstream.core.options import SpeculationOptions

Runs = Mapping[str, Sequence[Run]]
Around = Callable[[str], AbstractAsyncContextManager[object]]
"""What goes on beside a run of the router of that name."""


def _nothing(name: str) -> AbstractAsyncContextManager[None]:
    del name
    return nullcontext()


async def run_pairs(
    plan: PairPlan,
    clients: Mapping[str, AsyncClient],
    *,
    advance: Callable[[str], None],
    around: Around = _nothing,
) -> Runs:
    """All runs by the name of the router. One of each goes first and does not count."""
    pace = Pace()
    runs: dict[str, list[Run]] = {name: [] for name in plan.names}
    for number, name in enumerate([*plan.names, *plan.turns()]):
        async with around(name):
            ask = _sender(plan, clients[name], pace)
            samples = await closed_loop(plan.concurrency, plan.asked(), ask, pace=pace)
        if number >= len(plan.names):
            runs[name].append(Run(samples, plan.concurrency))
        advance(name)
    return runs


def pair_figures(plan: PairPlan, runs: Runs) -> dict[str, Any]:
    """Speeds, and subject over base pair by pair; how many outputs are the same in both."""
    rates = {name: [run.tokens_per_s for run in of] for name, of in runs.items()}
    speeds = {name: _interval([rate for rate in of if rate]) for name, of in rates.items()}
    samples = {name: [sample for run in of for sample in run.samples] for name, of in runs.items()}
    failures = [sample.failure for of in samples.values() for sample in of if sample.failure]
    references = {sample.question_id: sample.token_ids for sample in samples[plan.base]}
    same = [
        sample.token_ids == references.get(sample.question_id) for sample in samples[plan.subject]
    ]
    return {
        "tokens_per_s": speeds,
        "ratio": paired(rates[plan.subject], rates[plan.base]),
        "ttft_ms": {name: _milliseconds(of) for name, of in samples.items()},
        "num_requests": len(same),
        "num_identical": sum(same),
        "failures": [asdict(failure) for failure in failures],
        "runs": rates,
    }


def _sender(plan: PairPlan, client: AsyncClient, pace: Pace) -> Send:
    async def ask(question: Question, due_s: float) -> Sample:
        asked = Ask(
            question.question_id,
            question.turns[0],
            plan.max_new_tokens,
            plan.sampling,
            SpeculationOptions(),
        )
        return await send(client, asked, due_s=due_s, clock=pace.clock)

    return ask


def _interval(values: Sequence[float]) -> dict[str, float] | None:
    found = median_interval(values)
    return None if found is None else asdict(found)


def _milliseconds(samples: Sequence[Sample]) -> dict[str, float] | None:
    return _interval([1000 * sample.ttft_s for sample in samples if sample.ttft_s is not None])
