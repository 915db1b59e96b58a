"""`slipstream bench`: measure speed, identity and cost. Knows only options and printing."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from slipstream.bench import report
from slipstream.bench.methods import Method
from slipstream.cli.bench_flags import (
    CostFlags,
    ModelFlags,
    OutputFlags,
    PromptFlags,
    RunFlags,
    Turns,
)
from slipstream.cli.bench_output import (
    check_writable,
    figures_console,
    model_facts,
    prompt_facts,
    show_lines,
    step_bar,
    write,
)
from slipstream.cli.bench_peers import peers
from slipstream.cli.bench_quality import quality
from slipstream.cli.bench_rounds import rounds
from slipstream.cli.bench_serve import serve
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.engines import MethodEngines
    from slipstream.bench.speed import SpeedPlan

app = typer.Typer(help="Measure speed and identity.", no_args_is_help=True)


app.command()(rounds)
app.command()(peers)
app.command()(serve)
app.command()(quality)


@app.callback()
def _group() -> None:
    """Measure speed and identity."""


@app.command()
@with_flags
def speed(prompts: PromptFlags, run: RunFlags, models: ModelFlags, output: OutputFlags) -> None:
    """Speed of methods on the same prompts, against the fastest plain decoding.

    All methods run in this process, prompt by prompt in turn. ratio is tokens per second over
    those of `plain`, prefill included; identical counts outputs with the tokens of plain
    decoding in the method's own numerics.
    """
    methods, questions, sampling = run.parsed(), prompts.questions(), run.sampling()
    _check(models, output)
    from slipstream.bench.speed import SpeedPlan, compare, run_speed

    plan = SpeedPlan(
        methods,
        questions,
        sampling,
        run.max_new_tokens,
        run.repeats,
        run.warmup,
        prompts.turns is Turns.ALL,
    )
    engines = _engines(methods, sampling, models)
    with step_bar(plan.num_conversations) as advance:
        outputs = run_speed(plan, engines, advance=advance)
    values = {
        "environment": {
            **model_facts(models, *_draft_models(methods)),
            **_run_facts(prompts, plan),
            "draft_sha256": engines.draft_digests,
        },
        "methods": compare(plan, engines, outputs),
    }
    _show_speed(values["methods"])
    write(output, values)


@app.command()
@with_flags
def cost(costs: CostFlags, models: ModelFlags, output: OutputFlags) -> None:
    """Cost of verifying rows, of a draft step, and of plain decoding, in milliseconds.

    Every forward is timed in turn with the others; medians are printed. Rows are verified
    together: one pending token and a chain of drafted ones, head included.
    """
    _check(models, output)
    from slipstream.bench.cost import CostPlan, measure_cost

    plan = CostPlan(costs.row_counts(), costs.context, costs.rounds)
    engines = _engines((), SamplingParams(), models)
    text = "\n".join(turn for question in PromptFlags().questions() for turn in question.turns)
    has_draft = models.draft != "glide" or engines.draft_folder().is_dir()
    measured = measure_cost(plan, engines, text, has_draft=has_draft)
    figures_console().print(report.cost_table(measured))
    show_lines(report.cost_lines(measured))
    environment = {**model_facts(models), "rounds": plan.rounds}
    write(output, {"environment": environment, "cost": measured})


def _check(models: ModelFlags, output: OutputFlags) -> None:
    models.check()
    check_writable(output)


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


def _run_facts(prompts: PromptFlags, plan: "SpeedPlan") -> dict[str, Any]:
    return {
        **prompt_facts(prompts),
        "num_prompts": len(plan.questions),
        "turns": prompts.turns.value,
        "max_new_tokens": plan.max_new_tokens,
        "temperature": plan.sampling.temperature,
        "seed": plan.sampling.seed,
        "repeats": plan.repeats,
        "warmup": plan.warmup,
    }


def _show_speed(methods: dict[str, Any]) -> None:
    console = figures_console()
    console.print(report.speed_table(methods))
    console.print()
    console.print(report.category_table(methods))
    show_lines(report.divergence_lines(methods))


if __name__ == "__main__":
    app()
