"""`slipstream bench`: speed and costs of models. Knows only options and printing."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import typer

from slipstream.bench.cost import CostPlan, cost_table, draft_line, measure_cost
from slipstream.bench.methods import GRAMMAR, Method, Numerics, parse_methods, with_references
from slipstream.bench.speed import (
    SpeedPlan,
    category_table,
    compare,
    difference_lines,
    run_speed,
    speed_table,
)
from slipstream.cli.benchmarks.bench_flags import ModelFlags, OutputFlags, QuestionFlags
from slipstream.cli.benchmarks.bench_gpu import gpu
from slipstream.cli.benchmarks.bench_load import peers, serve
from slipstream.cli.benchmarks.bench_rounds import rounds
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.core.types import SamplingParams
from slipstream.options import option

app = typer.Typer(help="Measure speed and identity.", no_args_is_help=True)
app.command()(rounds)
app.command()(peers)
app.command()(serve)
app.command()(gpu)


@dataclass(frozen=True, slots=True)
class MethodFlags:
    """Methods to compare."""

    methods: str = option(
        "plain,ngram,glide,glide+cape+svip,best",
        f"Methods, separated by commas; a method is {GRAMMAR}.",
    )
    numerics: Numerics = option(
        "invariant", "Numerics of drafting methods; plain is always the fastest."
    )

    def parsed(self) -> tuple[Method, ...]:
        """Return the methods and those that they are compared with."""
        return with_references(parse_methods(self.methods, numerics=self.numerics))


@app.callback()
def _group() -> None:
    """Measure speed and identity."""


@app.command()
@with_flags
def speed(
    prompts: QuestionFlags,
    which: MethodFlags,
    plan: SpeedPlan,
    models: ModelFlags,
    output: OutputFlags,
) -> None:
    """Speed of methods on the same prompts, against the fastest plain decoding.

    All methods run in this process, prompt by prompt in turn. ratio is tokens per second over
    those of `plain`, prefill included; identical counts outputs with the tokens of plain
    decoding in the method's own numerics.
    """
    plan = replace(plan, methods=which.parsed(), questions=prompts.questions())
    models.check()
    output.check()
    engines = models.engines(plan.sampling.params(), *_draft_models(plan.methods))
    with step_bar(plan.num_replies) as advance:
        samples = run_speed(plan, engines, advance=advance)
    figures = compare(plan, samples)
    console = figures_console()
    console.print(speed_table(figures))
    console.print()
    console.print(category_table(figures))
    show_lines(difference_lines(figures))
    environment = {
        **models.facts(*_draft_models(plan.methods)),
        **prompts.facts(),
        **asdict(plan.sampling),
        **{name: getattr(plan, name) for name in ("max_new_tokens", "repeats", "warmup")},
        "num_prompts": len(plan.questions),
        "draft_sha256": engines.draft_digests,
    }
    output.write({"environment": environment, "methods": figures})


@app.command()
@with_flags
def cost(plan: CostPlan, models: ModelFlags, output: OutputFlags) -> None:
    """Cost of verifying tokens, and of a draft step, in milliseconds.

    Every forward is timed in turn with the others; medians are printed. The tokens of a
    verification are one pending token and a chain of drafted ones, head included.
    """
    models.check()
    output.check()
    engines = models.engines(SamplingParams())
    text = "\n".join(turn for question in QuestionFlags().questions() for turn in question.turns)
    has_draft = models.draft != "glide" or engines.draft_folder().is_dir()
    measured = measure_cost(plan, engines, text, has_draft=has_draft)
    figures_console().print(cost_table(measured))
    if measured["draft"] is not None:
        show_lines([draft_line(measured["draft"])])
    output.write({"environment": {**models.facts(), "rounds": plan.rounds}, "cost": measured})


def _draft_models(methods: Sequence[Method]) -> Iterator[str]:
    return (method.model for method in methods if method.model is not None)


if __name__ == "__main__":
    app()
