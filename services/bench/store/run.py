"""Sends the same requests through two routers in turn, and compares. Prints nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.bench.questions import Question
from slipstream.bench.serve.arrivals import Pace, Send
from slipstream.bench.serve.distributions import median_interval
from slipstream.bench.serve.ratios import paired
from slipstream.bench.serve.request import Ask, send
from slipstream.bench.serve.sample import Run, Sample
from slipstream.bench.serve.workers import closed_loop
from slipstream.bench.store.plan import MEMORY, NAMES, REDIS, StorePlan
from slipstream.client import AsyncClient
from slipstream.core.options import SpeculationOptions

Runs = Mapping[str, Sequence[Run]]


async def run_store(
    plan: StorePlan, clients: Mapping[str, AsyncClient], *, advance: Callable[[str], None]
) -> Runs:
    """All runs by the name of the store. One of each goes first and does not count."""
    pace = Pace()
    runs: dict[str, list[Run]] = {name: [] for name in NAMES}
    for name in NAMES:
        await closed_loop(
            plan.concurrency, plan.asked(), _sender(plan, clients[name], pace), pace=pace
        )
        advance("warmup")
    for name in plan.turns():
        ask = _sender(plan, clients[name], pace)
        samples = await closed_loop(plan.concurrency, plan.asked(), ask, pace=pace)
        runs[name].append(Run(samples, plan.concurrency))
        advance(name)
    return runs


def store_figures(runs: Runs) -> dict[str, Any]:
    """Speeds, and Redis over memory pair by pair; how many outputs are the same in both."""
    rates = {name: [run.tokens_per_s for run in of] for name, of in runs.items()}
    speeds = {name: _interval([rate for rate in of if rate]) for name, of in rates.items()}
    samples = {name: [sample for run in of for sample in run.samples] for name, of in runs.items()}
    failures = [sample.failure for of in samples.values() for sample in of if sample.failure]
    references = {sample.question_id: sample.token_ids for sample in samples[MEMORY]}
    same = [sample.token_ids == references.get(sample.question_id) for sample in samples[REDIS]]
    return {
        "tokens_per_s": speeds,
        "ratio": paired(rates[REDIS], rates[MEMORY]),
        "ttft_ms": {name: _milliseconds(of) for name, of in samples.items()},
        "num_requests": len(same),
        "num_identical": sum(same),
        "failures": [asdict(failure) for failure in failures],
        "runs": rates,
    }


def _sender(plan: StorePlan, client: AsyncClient, pace: Pace) -> Send:
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
