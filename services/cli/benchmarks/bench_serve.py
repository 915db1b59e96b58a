"""`slipstream bench serve`: speed and identity under load. Knows only options and printing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.cli.benchmarks.bench_flags import (
    OutputFlags,
    QuestionFlags,
    machine_facts,
    plan_facts,
    weights_facts,
)
from slipstream.cli.engine import open_async_client
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, PlaceFlags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.core.types import SamplingParams
from slipstream.options import option

if TYPE_CHECKING:
    from slipstream.bench.load import LoadPlan
    from slipstream.bench.questions import Question
    from slipstream.client import AsyncClient


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """Users, the methods that answer them, and how often they send requests."""

    concurrency: str = option("1,2,4,8", "Users who send the next request when answered, as 1,2,4.")
    requests_per_worker: int = option(2, "Requests of each user in a run.")
    repeats: int = option(7, "Runs of each method with each number of users, in turn.")
    methods: str = option(
        "plain,auto,forced",
        "Separated by commas: plain, auto, forced, or a method as of bench speed.",
    )
    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    seed: int = option(0, "Seed of sampling above temperature 0.")

    def plan(self, questions: tuple["Question", ...]) -> "LoadPlan":
        """Return what is run. Raises `InvalidRequest` for what can't be."""
        from slipstream.bench.harness import parse_numbers
        from slipstream.bench.load import LoadPlan
        from slipstream.bench.methods import parse_request_methods

        return LoadPlan(
            parse_numbers("concurrency", self.concurrency, int),
            parse_request_methods(self.methods),
            questions,
            SamplingParams(temperature=self.temperature, seed=self.seed),
            self.requests_per_worker,
            self.max_new_tokens,
            self.repeats,
        )


@with_flags
def serve(load: LoadFlags, prompts: QuestionFlags, place: PlaceFlags, output: OutputFlags) -> None:
    """Speed and identity of many requests at once, of engines in this process or behind --router.

    All methods run in turn with every number of users, --repeats times. Every output is compared
    with that of its prompt alone. For latencies and arrivals, send a load of your own to the HTTP
    front.
    """
    place.check()
    output.check()
    plan = load.plan(prompts.questions())
    opened = None if place.is_remote else open_async_client(place)
    with step_bar(plan.num_runs) as advance:
        figures, about = asyncio.run(_measure(plan, place, opened, advance))
    from slipstream.bench.load import load_table, remarks

    figures_console().print(load_table(figures))
    show_lines(remarks(figures))
    facts = plan_facts(plan, len(plan.questions), "max_new_tokens", "repeats", "per_worker")
    sampled = {"temperature": plan.sampling.temperature, "seed": plan.sampling.seed}
    environment = {**_environment(place, about), **prompts.facts(), **facts, **sampled}
    output.write({"environment": environment, "serve": figures})


async def _measure(
    plan: "LoadPlan",
    place: PlaceFlags,
    opened: "AsyncClient | None",
    advance: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures, and facts about the model. A router's client begins in its loop."""
    from slipstream.bench.load import LoadBench

    async with opened or open_async_client(place) as client:
        info = await client.model_info()
        about = {"model": info.model, "dtype": info.dtype, "numerics": info.numerics}
        return await LoadBench(plan, client, advance).figures(), about


def _environment(place: PlaceFlags, about: dict[str, Any]) -> dict[str, Any]:
    """Return facts about this machine; about engines elsewhere only what the router sends."""
    facts = {**machine_facts("cpu"), **about}
    if place.is_remote:
        return facts | {"router": place.router.router, "device": None, "threads": None}
    return facts | {
        "device": machine_facts(place.engine.device or "cpu")["device"],
        "draft": place.engine.draft or "glide",
        **weights_facts(place.engine.target or DEFAULT_TARGET),
    }
