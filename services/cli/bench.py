"""`slipstream bench`: speed and costs of models. Knows only options and printing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import typer

from slipstream.bench.methods import GRAMMAR, Method, parse_methods, with_references
from slipstream.cli.benchmarks.bench_flags import (
    ModelFlags,
    Numerics,
    OutputFlags,
    QuestionFlags,
    plan_facts,
)
from slipstream.cli.benchmarks.bench_gpu import gpu
from slipstream.cli.benchmarks.bench_peers import peers
from slipstream.cli.benchmarks.bench_rounds import rounds
from slipstream.cli.benchmarks.bench_serve import serve
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars, step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.core.errors import InvalidRequest
from slipstream.core.types import SamplingParams
from slipstream.options import option

if TYPE_CHECKING:
    from slipstream.bench.engines import MethodEngines
    from slipstream.bench.speed import SpeedPlan

app = typer.Typer(help="Measure speed and identity.", no_args_is_help=True)
app.command()(rounds)
app.command()(peers)
app.command()(serve)
app.command()(gpu)


class TurnChoice(StrEnum):
    """Part of a conversation to run."""

    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class SpeedFlags:
    """Methods, and how they are run."""

    methods: str = option(
        "plain,ngram,glide,glide+cape+svip,best",
        f"Methods, separated by commas; a method is {GRAMMAR}.",
    )
    numerics: Numerics = option(
        Numerics.INVARIANT, "Numerics of drafting methods; plain is always the fastest."
    )
    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    temperature: float = option(0.0, "Sampling temperature; 0 is greedy.")
    seed: int = option(0, "Seed of every method, for temperatures above 0.")
    warmup: int = option(1, "Short unmeasured replies of each method first.")
    repeats: int = option(1, "Runs over all prompts.")
    turns: TurnChoice = option(
        TurnChoice.FIRST, "first: one request a prompt; all: the whole conversation."
    )

    def sampling(self) -> SamplingParams:
        """Return how tokens are drawn. Raises `InvalidRequest` for a value out of range."""
        return SamplingParams(temperature=self.temperature, seed=self.seed)

    def parsed(self) -> tuple[Method, ...]:
        """Return the methods and those that they are compared with."""
        numerics: Literal["invariant", "fast"] = self.numerics.value
        return with_references(parse_methods(self.methods, numerics=numerics))


@dataclass(frozen=True, slots=True)
class CostFlags:
    """Sizes and repetitions of timed forwards."""

    rows: str = option("1,2,4,8,16,32", "Tokens of a verification, ascending from 1.")
    context: int = option(300, "Tokens before those that are verified.")
    rounds: int = option(20, "Timings of each forward.")

    def row_counts(self) -> tuple[int, ...]:
        """Return the numbers. Raises `InvalidRequest` for what is no list of them."""
        try:
            return tuple(int(part) for part in self.rows.split(","))
        except ValueError:
            raise InvalidRequest(f"rows are {self.rows!r}, but must be as 1,4,16") from None


@app.callback()
def _group() -> None:
    """Measure speed and identity."""


@app.command()
@with_flags
def speed(prompts: QuestionFlags, run: SpeedFlags, models: ModelFlags, output: OutputFlags) -> None:
    """Speed of methods on the same prompts, against the fastest plain decoding.

    All methods run in this process, prompt by prompt in turn. ratio is tokens per second over
    those of `plain`, prefill included; identical counts outputs with the tokens of plain
    decoding in the method's own numerics.
    """
    methods, questions, sampling = run.parsed(), prompts.questions(), run.sampling()
    models.check()
    output.check()
    from slipstream.bench import speed_figures as report
    from slipstream.bench.speed import SpeedPlan, compare, run_speed

    plan = SpeedPlan(
        methods,
        questions,
        sampling,
        run.max_new_tokens,
        run.repeats,
        run.warmup,
        run.turns is TurnChoice.ALL,
    )
    engines = _engines(methods, sampling, models)
    with step_bar(plan.num_conversations) as advance:
        outputs = run_speed(plan, engines, advance=advance)
    environment = {
        **models.facts(*_draft_models(methods)),
        **prompts.facts(),
        **_run_facts(run, plan),
        "draft_sha256": engines.draft_digests,
    }
    figures = compare(plan, engines, outputs)
    console = figures_console()
    console.print(report.speed_table(figures))
    console.print()
    console.print(report.category_table(figures))
    show_lines(report.divergence_lines(figures))
    output.write({"environment": environment, "methods": figures})


@app.command()
@with_flags
def cost(costs: CostFlags, models: ModelFlags, output: OutputFlags) -> None:
    """Cost of verifying tokens, of a draft step, and of plain decoding, in milliseconds.

    Every forward is timed in turn with the others; medians are printed. The tokens of a
    verification are one pending token and a chain of drafted ones, head included.
    """
    models.check()
    output.check()
    from slipstream.bench.cost import CostPlan, cost_lines, cost_table, measure_cost

    plan = CostPlan(costs.row_counts(), costs.context, costs.rounds)
    engines = _engines((), SamplingParams(), models)
    text = "\n".join(turn for question in QuestionFlags().questions() for turn in question.turns)
    has_draft = models.draft != "glide" or engines.draft_folder().is_dir()
    measured = measure_cost(plan, engines, text, has_draft=has_draft)
    figures_console().print(cost_table(measured))
    show_lines(cost_lines(measured))
    output.write({"environment": {**models.facts(), "rounds": plan.rounds}, "cost": measured})


def _engines(
    methods: Sequence[Method], sampling: SamplingParams, models: ModelFlags
) -> "MethodEngines":
    """Find every model that is needed, and load none yet."""
    from slipstream.bench.engines import MethodEngines
    from slipstream.client.engine import EngineOptions
    from slipstream.models.store.resolve import resolve

    # Methods share engines and get the same prompts: none may find what another has read.
    options = EngineOptions(models.dtype, "fast", models.threads, models.device, max_cached_bytes=0)
    with bars() as progress:
        for name in (models.target, *_draft_models(methods)):
            resolve(name, progress=progress)
    return MethodEngines(
        models.target, models.draft, options, sampling=sampling, profile=models.profile
    )


def _draft_models(methods: Sequence[Method]) -> Iterator[str]:
    return (method.model for method in methods if method.model is not None)


def _run_facts(run: SpeedFlags, plan: "SpeedPlan") -> dict[str, Any]:
    kept = ("max_new_tokens", "temperature", "seed", "repeats", "warmup")
    return {**plan_facts(run, len(plan.questions), *kept), "turns": run.turns.value}


if __name__ == "__main__":
    app()
