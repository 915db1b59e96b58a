"""`slipstream bench`: measure speed, identity and cost. Knows only options and printing."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.bench import report
from slipstream.bench.methods import GRAMMAR, Method, parse_methods, with_references
from slipstream.bench.questions import Question, read_questions, select
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars
from slipstream.core.errors import InvalidRequest
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.contenders import Contenders
    from slipstream.bench.speed import Advance, SpeedPlan

app = typer.Typer(help="Measure speed and identity.", no_args_is_help=True)

_METHODS = "plain,ngram,glide,glide+cape+svip,best"
Option = typer.Option


class Numerics(StrEnum):
    """Of drafting methods."""

    INVARIANT = "invariant"
    FAST = "fast"


class Turns(StrEnum):
    """How much of a conversation to run."""

    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """What runs, and on what."""

    target: Annotated[str, Option(help="Target: an alias, a path or OWNER/NAME of the hub.")] = (
        "smollm2-135m"
    )
    draft: Annotated[
        str, Option(help="Draft of glide and best: glide, or a directory of GliDe weights.")
    ] = "glide"
    dtype: Annotated[str, Option(help="bfloat16, float16 or float32.")] = "bfloat16"
    threads: Annotated[int | None, Option(help="CPU threads; default: torch's choice.")] = None
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu"

    def check(self) -> None:
        """Raises `InvalidRequest` for a draft that is no GliDe draft."""
        if self.draft != "glide" and not Path(self.draft).expanduser().is_dir():
            raise InvalidRequest(
                f"the draft is {self.draft!r}, but must be glide or a directory of GliDe weights;"
                " other drafts are methods"
            )


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """What is asked."""

    prompts: Annotated[
        Path | None,
        Option(help="JSON lines with question_id, category, turns; default: a small set."),
    ] = None
    limit: Annotated[
        int | None, Option(help="At most so many prompts, evenly from all categories.")
    ] = None
    categories: Annotated[str, Option(help="Only these, with commas between.")] = ""
    turns: Annotated[
        Turns, Option(help="first: one request a prompt; all: the whole conversation.")
    ] = Turns.FIRST

    def path(self) -> Path:
        """The file, by default the one in the package."""
        if self.prompts is not None:
            return self.prompts
        return Path(str(resources.files("slipstream") / "data" / "prompts.jsonl"))

    def questions(self) -> tuple[Question, ...]:
        """Raises `InvalidRequest` for a file, line or choice that makes no sense."""
        names = [name.strip() for name in self.categories.split(",") if name.strip()]
        return select(read_questions(self.path()), categories=names, limit=self.limit)


@dataclass(frozen=True, slots=True)
class RunFlags:
    """How it is run."""

    methods: Annotated[str, Option(help=f"With commas between; a method is {GRAMMAR}.")] = _METHODS
    numerics: Annotated[
        Numerics, Option(help="Of drafting methods; plain is always the fastest.")
    ] = Numerics.INVARIANT
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int, Option(help="Of every method, for temperatures above 0.")] = 0
    warmup: Annotated[int, Option(help="Short unmeasured replies of each method first.")] = 1
    repeats: Annotated[int, Option(help="Runs over all prompts.")] = 1

    def parsed(self) -> tuple[Method, ...]:
        """The methods and those that they are compared with."""
        numerics: Literal["invariant", "fast"] = self.numerics.value
        return with_references(parse_methods(self.methods, numerics=numerics))


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """Where the figures go."""

    json: Annotated[Path | None, Option(help="Also write everything to this file.")] = None


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
    methods, questions = run.parsed(), prompts.questions()
    sampling = SamplingParams(temperature=run.temperature, seed=run.seed)
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
    contenders = _contenders(plan, models)
    with _progress(plan.num_conversations) as advance:
        outputs = run_speed(plan, contenders, advance=advance)
    values = {
        "environment": {
            **_environment(prompts, models, plan),
            "draft_sha256": contenders.draft_digests(),
        },
        "methods": compare(plan, contenders, outputs),
    }
    _show_speed(values["methods"])
    _write(output, values)


def _check(models: ModelFlags, output: OutputFlags) -> None:
    models.check()
    if output.json is not None:
        from slipstream.bench.environment import check_writable

        check_writable(output.json)


def _contenders(plan: "SpeedPlan", models: ModelFlags) -> "Contenders":
    """Find every model that is needed, and load none yet."""
    from slipstream.bench.contenders import Contenders
    from slipstream.client.engine import EngineOptions
    from slipstream.models.store.resolve import resolve

    options = EngineOptions(models.dtype, "fast", models.threads, models.device)
    with bars() as progress:
        for name in (models.target, *_draft_models(plan.methods)):
            resolve(name, progress=progress)
    return Contenders(models.target, models.draft, options, sampling=plan.sampling)


def _draft_models(methods: Sequence[Method]) -> Iterator[str]:
    return (method.model for method in methods if method.model is not None)


def _environment(prompts: PromptFlags, models: ModelFlags, plan: "SpeedPlan") -> dict[str, Any]:
    from slipstream.bench.environment import environment, file_digest, weights_digests
    from slipstream.models.store.resolve import find_local

    names = dict.fromkeys([models.target, *_draft_models(plan.methods)])
    weights = {name: weights_digests(find_local(name)) for name in names}
    return {
        **environment(models.device),
        "command": _command(),
        "target": models.target,
        "dtype": models.dtype,
        "weights_sha256": weights,
        "prompts": prompts.path().name,
        "prompts_sha256": file_digest(prompts.path()),
        "num_prompts": len(plan.questions),
        "turns": prompts.turns.value,
        "max_new_tokens": plan.max_new_tokens,
        "temperature": plan.sampling.temperature,
        "seed": plan.sampling.seed,
        "repeats": plan.repeats,
        "warmup": plan.warmup,
    }


def _command() -> str:
    return shlex.join(["slipstream", *sys.argv[1:]])


@contextmanager
def _progress(total: int) -> Iterator["Advance"]:
    """A bar on standard error, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("loading", total=total)

        def advance(method: str) -> None:
            bar.update(task, advance=1, description=method)

        yield advance


def _show_speed(methods: dict[str, Any]) -> None:
    console = _console()
    console.print(report.speed_table(methods))
    console.print()
    console.print(report.category_table(methods))
    for line in report.divergence_lines(methods):
        console.print(line, markup=False)


def _console() -> Console:
    """As wide as the terminal; a file takes any width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 240
    return console


def _write(output: OutputFlags, values: dict[str, Any]) -> None:
    if output.json is None:
        return
    from slipstream.bench.environment import write_json

    write_json(output.json, values)


if __name__ == "__main__":
    app()
