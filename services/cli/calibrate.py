"""`slipstream calibrate`: one profile file for a pair of models on this machine.

Knows only options, progress and printing.
"""

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from slipstream.cli.bench_flags import Numerics, PromptFlags
from slipstream.cli.bench_output import command, figures_console, prompt_facts, step_bar
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars
from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.profile import Profile
from slipstream.core.request import NO_DRAFTER
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.calibrate.report import Calibrated
    from slipstream.bench.calibrate.run import CalibrationPlan
    from slipstream.bench.engines import MethodEngines
    from slipstream.draft.build import DraftModel

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class PairFlags:
    """Which models, and how they run."""

    target: Annotated[str, Option(help="Target: an alias, a path or OWNER/NAME of the hub.")] = (
        "smollm2-135m"
    )
    draft: Annotated[str, Option(help="glide, a directory of GliDe weights, or vanilla:MODEL.")] = (
        "glide"
    )
    dtype: Annotated[str, Option(help="auto, bfloat16, float16 or float32.")] = "auto"
    numerics: Annotated[Numerics, Option(help="invariant, as is served by default, or fast.")] = (
        Numerics.INVARIANT
    )
    threads: Annotated[int | None, Option(help="CPU threads; default: torch's choice.")] = None
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu"

    def engines(self) -> "MethodEngines":
        """Find the models, and load none yet. Raises `InvalidRequest` for a draft that is none."""
        from slipstream.bench.engines import MethodEngines
        from slipstream.client.engine import EngineOptions
        from slipstream.models.store.resolve import resolve

        if self.draft in ("ngram", NO_DRAFTER):
            raise InvalidRequest(f"the draft is {self.draft}, but only models are calibrated")
        options = EngineOptions(self.dtype, "fast", self.threads, self.device)
        with bars() as progress:
            resolve(self.target, progress=progress)
            if self.draft.startswith("vanilla:"):
                resolve(self.draft.removeprefix("vanilla:"), progress=progress)
        return MethodEngines(self.target, self.draft, options, sampling=SamplingParams())


@dataclass(frozen=True, slots=True)
class AskedFlags:
    """What is asked."""

    prompts: Annotated[
        Path | None,
        Option(
            help="JSON lines with question_id, category, turns, of which the first is asked;"
            " default: a small set. Use prompts like those that will be served."
        ),
    ] = None
    limit: Annotated[
        int | None, Option(help="At most so many prompts, evenly from all categories.")
    ] = None

    def flags(self) -> PromptFlags:
        """The same as benchmarks read them."""
        return PromptFlags(self.prompts, self.limit)


@dataclass(frozen=True, slots=True)
class TuningFlags:
    """How much to look at."""

    max_new_tokens: Annotated[
        int, Option(help="Most tokens of a reply. 64 show most of what a text has to show.")
    ] = 64
    minutes: Annotated[
        float,
        Option(
            help="Time for everything. With less of it fewer prompts are recorded and timed, and"
            " costs less often; the sweep itself is a simulation and takes seconds."
        ),
    ] = 8.0
    temperature: Annotated[
        float,
        Option(
            help="Of the sampled replies; greedy ones are calibrated beside them, weighed alike."
        ),
    ] = 1.0
    seed: Annotated[int, Option(help="Of the sampled replies.")] = 0
    depth: Annotated[
        int,
        Option(
            help="Longest chain that is tried, up to the lag the draft was trained for. More than"
            " twice the tokens per round is of no use."
        ),
    ] = 8
    finalists: Annotated[
        int, Option(help="Settings that run against the clock, the best of each policy first.")
    ] = 4


@dataclass(frozen=True, slots=True)
class FileFlags:
    """What is written."""

    out: Annotated[
        Path,
        Option(
            help="The profile; beside GliDe weights, a file named profile.json is their default."
        ),
    ]
    sweep: Annotated[
        Path | None, Option(help="All settings as JSON; default: OUT with .sweep.json.")
    ] = None
    plot: Annotated[
        Path | None,
        Option(help="The sweep as PNG or SVG; default: OUT with .png, if matplotlib is here."),
    ] = None

    def sweep_path(self) -> Path:
        """Where all settings go."""
        return self.sweep or self.out.with_suffix(".sweep.json")

    def plot_path(self) -> Path | None:
        """Where the plot goes; None for nowhere."""
        if self.plot is not None:
            return self.plot
        return None if find_spec("matplotlib") is None else self.out.with_suffix(".png")

    def check(self) -> None:
        """Raises `InvalidRequest` or `TrainingError` for what can't be written, in good time."""
        from slipstream.bench.environment import check_writable
        from slipstream.plots import check_plot

        if self.plot is not None:
            check_plot(self.plot)
        paths = [self.out, self.sweep_path(), *([path] if (path := self.plot_path()) else [])]
        if len(set(paths)) < len(paths):
            raise InvalidRequest("profile, sweep and plot need a file each")
        for path in paths:
            check_writable(path)


@app.command()
@with_flags
def calibrate(files: FileFlags, models: PairFlags, asked: AskedFlags, tuning: TuningFlags) -> None:
    """Find the fastest way to draft for a pair of models on this machine.

    Measures what steps and rows cost, records what the draft makes of every position in greedy
    and sampled replies, tries stop policies, thresholds, CaPE tables and node budgets on the
    records, and runs the best against the clock. The fastest becomes the profile.
    """
    prompts = asked.flags()
    plan = _plan(models, prompts, tuning)
    files.check()
    engines = models.engines()
    stages = _Stages(plan, engines, engines.draft_model(plan.numerics))
    result = stages.run()
    _show(result)
    _write(result, files, models, prompts)


def _plan(models: PairFlags, prompts: PromptFlags, tuning: TuningFlags) -> "CalibrationPlan":
    from slipstream.bench.calibrate.run import CalibrationPlan

    return CalibrationPlan(
        prompts.questions(),
        max_new_tokens=tuning.max_new_tokens,
        minutes=tuning.minutes,
        temperature=tuning.temperature,
        seed=tuning.seed,
        depth=tuning.depth,
        num_finalists=tuning.finalists,
        numerics=models.numerics.value,
    )


class _Stages:
    """The stages, one after the other, each with a bar and the time that is left."""

    def __init__(
        self, plan: "CalibrationPlan", engines: "MethodEngines", model: "DraftModel"
    ) -> None:
        self._plan = plan
        self._engines = engines
        self._model = model
        self._start_s = time.monotonic()

    def run(self) -> "Calibrated":
        from slipstream.bench.calibrate import run
        from slipstream.bench.calibrate.report import Calibrated
        from slipstream.bench.calibrate.timed import Race, entries, race

        plan, engines, model = self._plan, self._engines, self._model
        before = self._before()
        self._say("measuring what steps and rows cost")
        costs, measured = run.measure(plan, engines)
        self._say("recording replies, and what the draft makes of them")
        recorded = self._record()
        fitted, evidence = run.fitted(before or model.untuned_profile(), recorded, costs)
        self._say(
            f"trying settings on {recorded.num_tokens} tokens of {recorded.num_replies} replies"
        )
        tried = list(run.swept(fitted, evidence, depth=plan.depth_of(model)))
        best = run.best_of(tried, evidence, plan.num_finalists)
        named = entries(before, best)
        ready = Race(named, plan.questions, plan.samplings, plan.max_new_tokens, plan.numerics)
        ready = run.affordable(ready, self._left_s(), recorded, costs)
        self._say(f"running the best {len(named)} on {len(ready.questions)} prompts")
        with step_bar(ready.num_steps) as advance:
            timed = race(ready, engines, model, advance=advance)
        return Calibrated(
            model.pair,
            timed,
            [*tried, *(item for item in best if item not in tried)],
            recorded,
            measured,
            len(ready.questions),
        )

    def _before(self) -> Profile | None:
        try:
            return self._model.default_profile()
        except (InvalidRequest, ModelMismatch) as error:
            self._say(f"leaving the draft's own profile aside: {error}")
            return None

    def _record(self) -> Any:
        from slipstream.bench.calibrate.run import RECORDING_SHARE, record

        until = self._start_s + 60 * self._plan.minutes * RECORDING_SHARE
        with step_bar(len(self._plan.questions)) as advance:
            return record(
                self._plan,
                self._engines,
                self._model,
                is_time_left=lambda: time.monotonic() < until,
                advance=advance,
            )

    def _left_s(self) -> float:
        return self._start_s + 60 * self._plan.minutes - time.monotonic()

    def _say(self, what: str) -> None:
        typer.echo(f"{what}; {max(self._left_s(), 0) / 60:.1f} minutes left", err=True)


def _show(result: "Calibrated") -> None:
    from slipstream.bench.calibrate.report import timed_table

    console = figures_console()
    console.print(timed_table(result.timed, result.tried))
    console.print(f"chosen: {result.best.name}", markup=False, soft_wrap=True)


def _write(result: "Calibrated", files: FileFlags, models: PairFlags, prompts: PromptFlags) -> None:
    from slipstream.bench.calibrate.report import save_sweep, sweep_values
    from slipstream.bench.environment import environment, write_json

    values = result.file(command(), environment(models.device), prompt_facts(prompts))
    write_json(files.sweep_path(), sweep_values(result.tried, result.timed))
    if (plot := files.plot_path()) is not None:
        save_sweep(plot, result.tried)
    write_json(files.out, values)
    typer.echo(f"wrote {files.out}", err=True)
