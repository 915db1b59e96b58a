"""`slipstream bench serve`: speed and latency under load. Knows only options and printing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from slipstream.cli.bench_flags import LimitOption, OutputFlags, PromptFlags, PromptsOption
from slipstream.cli.bench_output import (
    check_writable,
    figures_console,
    machine_facts,
    prompt_facts,
    show_lines,
    step_bar,
    weights_facts,
    write,
)
from slipstream.cli.engine import fetched, remote_options
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, EngineFlags, PlaceFlags, RouterFlags
from slipstream.core.errors import UnsupportedCombination
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.serve.load import Load
    from slipstream.bench.serve.plan import Amount, ServePlan
    from slipstream.client import AsyncClient

LOAD = "Load"


def _option(text: str) -> object:
    return Option(help=text, rich_help_panel=LOAD)


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """Load: users, and how often they ask."""

    concurrency: Annotated[
        str, _option("Users who ask again when answered, as 1,2,4; default: 1,2,4,8.")
    ] = ""
    rates: Annotated[
        str, _option("Users a second who come whether or not others are answered, as 0.5,1,2.")
    ] = ""
    requests_per_worker: Annotated[
        int | None, _option("Of each user in a run of --concurrency; default: 2.")
    ] = None
    num_requests: Annotated[
        int | None, _option("Of all users in a run; default with --rates: 32.")
    ] = None
    seconds: Annotated[
        float | None, _option("How long users ask in a run, in place of a number of requests.")
    ] = None
    repeats: Annotated[int, _option("Runs of each method at each load, in turn.")] = 7
    warmup: Annotated[int, _option("Short unmeasured requests of each user first.")] = 1
    intruder_tokens: Annotated[
        int | None,
        _option("Instead: let a prompt of so many tokens come among the running sessions."),
    ] = None

    def amount(self) -> "Amount":
        """Raise `InvalidRequest` for what makes no sense."""
        from slipstream.bench.serve.plan import Amount

        return Amount(self.requests_per_worker, self.num_requests, self.seconds)


@dataclass(frozen=True, slots=True)
class AskFlags:
    """Prompts, methods, limits and plots."""

    methods: Annotated[
        str,
        Option(help="With commas between: plain, auto, forced, or a method as of bench speed."),
    ] = "plain,auto,forced"
    prompts: PromptsOption = None
    limit: LimitOption = None
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int, Option(help="Of arrivals, and of sampling above temperature 0.")] = 0
    slo_ttft_ms: Annotated[
        float | None, Option(help="A good request has its first token within this.")
    ] = None
    slo_tpot_ms: Annotated[
        float | None, Option(help="A good request takes at most this per output token.")
    ] = None
    check_identity: Annotated[
        bool, Option("--check-identity", help="Compare outputs with those of the prompts alone.")
    ] = False
    plot: Annotated[Path | None, Option(help="Also draw the figures into this directory.")] = None

    def check(self) -> None:
        """Raise an error for plots that can't be drawn."""
        if self.plot is not None:
            from slipstream.bench.charts import check_folder

            check_folder(self.plot)

    def prompt_flags(self) -> PromptFlags:
        """Return where the questions are."""
        return PromptFlags(self.prompts, self.limit)

    def plan(self, load: LoadFlags) -> "ServePlan":
        """Raise `InvalidRequest` for what makes no sense."""
        from slipstream.bench.serve.configurations import parse_configs
        from slipstream.bench.serve.plan import LongPromptPlan, ServePlan, parse_points
        from slipstream.bench.serve.sample import Limits

        asks_nothing = not (load.concurrency.strip() or load.rates.strip())
        tokens = load.intruder_tokens
        if tokens is not None and self.plot is not None:
            raise UnsupportedCombination("--plot draws loads, but --intruder-tokens measures none")
        return ServePlan(
            parse_points("1,2,4,8" if asks_nothing else load.concurrency, load.rates),
            parse_configs(self.methods),
            self.prompt_flags().questions(),
            SamplingParams(temperature=self.temperature, seed=self.seed),
            load.amount(),
            self.max_new_tokens,
            load.repeats,
            load.warmup,
            Limits(self.slo_ttft_ms, self.slo_tpot_ms),
            self.check_identity,
            None if tokens is None else LongPromptPlan(tokens),
        )


@with_flags
def serve(load: LoadFlags, ask: AskFlags, place: PlaceFlags, output: OutputFlags) -> None:
    """Speed and latency under load, of engines in this process or behind --router.

    All methods run in turn at every load, --repeats times. Speeds are medians of the runs, ratios
    medians over pairs of neighbouring runs; latencies are of all requests, from the moment their
    user came.
    """
    place.check()
    ask.check()
    check_writable(output)
    plan = ask.plan(load)
    open_client = _opener(place)
    with step_bar(plan.num_runs) as advance:
        figures, about = asyncio.run(_measure(plan, open_client, advance))
    _show(figures, plan)
    if ask.plot is not None:
        _draw(figures, ask.plot)
    environment = {**_environment(place, about), **_facts(ask, load, plan)}
    name = "serve" if plan.long_prompt is None else "intruder"
    write(output, {"environment": environment, name: figures})


async def _measure(
    plan: "ServePlan", open_client: Callable[[], "AsyncClient"], advance: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures, and what answered."""
    from slipstream.bench.serve.load import Load

    async with open_client() as client:
        info = await client.model_info()
        about = {"model": info.model, "dtype": info.dtype, "numerics": info.numerics}
        return await _figures(Load(plan, client, advance)), about


async def _figures(load: "Load") -> dict[str, Any]:
    from slipstream.bench.serve.figures import serve_figures
    from slipstream.bench.serve.interference import interference_figures
    from slipstream.bench.serve.run import find_references, run_interference, run_serve

    plan = load.plan
    if plan.long_prompt is not None:
        return interference_figures(await run_interference(load, plan.long_prompt))
    runs = await run_serve(load)
    references = await find_references(load, runs) if plan.checks_identity else None
    return serve_figures(plan, runs, references)


def _opener(place: PlaceFlags) -> Callable[[], "AsyncClient"]:
    """Return what makes the client, in its loop; engines in this process are loaded before."""
    if place.is_remote:
        return lambda: _remote(place.router)
    client = _embedded(place.engine)
    return lambda: client


def _embedded(flags: EngineFlags) -> "AsyncClient":
    from slipstream.client import AsyncClient

    with fetched(flags) as options:
        return AsyncClient.embedded(**options)


def _remote(flags: RouterFlags) -> "AsyncClient":
    from slipstream.client import AsyncClient

    assert flags.router is not None
    return AsyncClient(flags.router, **remote_options(flags))


def _show(figures: dict[str, Any], plan: "ServePlan") -> None:
    from slipstream.bench.serve import report

    console = figures_console()
    tables = [report.load_table, report.latency_table, report.ratio_table]
    for make in tables if plan.long_prompt is None else [report.interference_table]:
        console.print(make(figures))
        console.print()
    show_lines(report.remarks(figures))


def _draw(figures: dict[str, Any], folder: Path) -> None:
    from slipstream.bench.serve.curves import save_curves

    show_lines(f"plot {path}" for path in save_curves(figures, folder))


def _environment(place: PlaceFlags, about: dict[str, Any]) -> dict[str, Any]:
    """The machine of this process; of engines elsewhere only what the router says."""
    facts = {**machine_facts("cpu"), **about}
    if place.is_remote:
        return facts | {"router": place.router.router, "device": None, "threads": None}
    return facts | {
        "device": machine_facts(place.engine.device or "cpu")["device"],
        "draft": place.engine.draft or "glide",
        **weights_facts(place.engine.target or DEFAULT_TARGET),
    }


def _facts(ask: AskFlags, load: LoadFlags, plan: "ServePlan") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **prompt_facts(ask.prompt_flags()),
        "num_prompts": len(plan.questions),
        "max_new_tokens": plan.max_new_tokens,
        "temperature": plan.sampling.temperature,
        "seed": plan.sampling.seed,
        "repeats": plan.repeats,
        "warmup": plan.warmup,
        "amount": asdict(plan.amount),
        "intruder_tokens": load.intruder_tokens,
    }
