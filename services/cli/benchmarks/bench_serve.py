"""`slipstream bench serve`: speed and latency under load. Knows only options and printing."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from slipstream.core.errors import UnsupportedCombination
from slipstream.core.types import SamplingParams
from slipstream.options import option

if TYPE_CHECKING:
    from slipstream.bench.questions import Question
    from slipstream.bench.serve.plan import ServePlan
    from slipstream.client import AsyncClient


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """Load: users, and how often they send requests."""

    PANEL: ClassVar[str] = "Load"

    concurrency: str = option(
        "", "Users who send the next request when answered, as 1,2,4; default: 1,2,4,8."
    )
    rates: str = option(
        "", "Users a second who come whether or not others are answered, as 0.5,1,2."
    )
    requests_per_worker: int | None = option(
        None, "Requests of each user in a run of --concurrency; default: 2."
    )
    num_requests: int | None = option(
        None, "Requests of all users in a run; default with --rates: 32."
    )
    seconds: float | None = option(
        None, "How long users send requests in a run, in place of a number of requests."
    )
    repeats: int = option(7, "Runs of each method at each load, in turn.")
    warmup: int = option(1, "Short unmeasured requests of each user first.")
    intruder_tokens: int | None = option(
        None, "Instead: send a prompt of so many tokens among the running sessions."
    )


@dataclass(frozen=True, slots=True)
class MethodFlags:
    """Methods, limits and plots."""

    methods: str = option(
        "plain,auto,forced",
        "Separated by commas: plain, auto, forced, or a method as of bench speed.",
    )
    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    seed: int = option(0, "Seed of arrivals, and of sampling above temperature 0.")
    slo_ttft_ms: float | None = option(
        None, "A good request has its first token within this many milliseconds."
    )
    slo_tpot_ms: float | None = option(
        None, "A good request takes at most this many milliseconds per output token."
    )
    check_identity: bool = option(False, "Compare outputs with those of the prompts alone.")
    plot: Path | None = option(None, "Also draw the figures into this directory.")

    def check(self, load: LoadFlags) -> None:
        """Raise an error for plots that can't be drawn."""
        if self.plot is not None:
            from slipstream.bench.report import check_folder

            check_folder(self.plot)
            if load.intruder_tokens is not None:
                raise UnsupportedCombination(
                    "--plot draws loads, but --intruder-tokens measures none"
                )

    def plan(self, load: LoadFlags, questions: tuple["Question", ...]) -> "ServePlan":
        """Return what is run. Raises `InvalidRequest` for options that contradict."""
        from slipstream.bench.methods import parse_request_methods
        from slipstream.bench.serve.plan import Amount, ServePlan, parse_points
        from slipstream.bench.serve.sample import GoodputLimits

        has_load = load.concurrency.strip() or load.rates.strip()
        return ServePlan(
            parse_points(load.concurrency if has_load else "1,2,4,8", load.rates),
            parse_request_methods(self.methods),
            questions,
            SamplingParams(temperature=self.temperature, seed=self.seed),
            Amount(load.requests_per_worker, load.num_requests, load.seconds),
            self.max_new_tokens,
            load.repeats,
            load.warmup,
            GoodputLimits(self.slo_ttft_ms, self.slo_tpot_ms),
            self.check_identity,
            load.intruder_tokens,
        )


@with_flags
def serve(
    load: LoadFlags,
    requests: MethodFlags,
    prompts: QuestionFlags,
    place: PlaceFlags,
    output: OutputFlags,
) -> None:
    """Speed and latency under load, of engines in this process or behind --router.

    All methods run in turn at every load, --repeats times. Speeds are medians of the runs, ratios
    medians over pairs of neighbouring runs; latencies are of all requests, from the moment their
    user came.
    """
    place.check()
    requests.check(load)
    output.check()
    plan = requests.plan(load, prompts.questions())
    opened = None if place.is_remote else open_async_client(place)
    with step_bar(plan.num_runs) as advance:
        figures, about = asyncio.run(_measure(plan, place, opened, advance))
    _show(figures, plan)
    if requests.plot is not None:
        from slipstream.bench.serve.report import save_curves

        show_lines(f"plot {path}" for path in save_curves(figures, requests.plot))
    environment = {**_environment(place, about), **prompts.facts(), **_facts(plan, load)}
    name = "serve" if plan.long_prompt_tokens is None else "intruder"
    output.write({"environment": environment, name: figures})


async def _measure(
    plan: "ServePlan",
    place: PlaceFlags,
    opened: "AsyncClient | None",
    advance: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures, and facts about the model. A router's client begins in its loop."""
    from slipstream.bench.serve.figures import serve_figures
    from slipstream.bench.serve.interference import interference_figures
    from slipstream.bench.serve.load import ServeLoad
    from slipstream.bench.serve.run import find_references, run_interference, run_serve

    async with opened or open_async_client(place) as client:
        info = await client.model_info()
        about = {"model": info.model, "dtype": info.dtype, "numerics": info.numerics}
        load = ServeLoad(plan, client, advance)
        if plan.long_prompt_tokens is not None:
            return interference_figures(
                await run_interference(load, plan.long_prompt_tokens)
            ), about
        runs = await run_serve(load)
        references = await find_references(load, runs) if plan.checks_identity else None
        return serve_figures(plan, runs, references), about


def _show(figures: dict[str, Any], plan: "ServePlan") -> None:
    from slipstream.bench.serve import report

    console = figures_console()
    tables = [report.load_table, report.latency_table, report.ratio_table]
    for make in tables if plan.long_prompt_tokens is None else [report.interference_table]:
        console.print(make(figures))
        console.print()
    show_lines(report.remarks(figures))


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


def _facts(plan: "ServePlan", load: LoadFlags) -> dict[str, Any]:
    return {
        **plan_facts(plan, len(plan.questions), "max_new_tokens", "repeats", "warmup"),
        "temperature": plan.sampling.temperature,
        "seed": plan.sampling.seed,
        "amount": asdict(plan.amount),
        "intruder_tokens": load.intruder_tokens,
    }
