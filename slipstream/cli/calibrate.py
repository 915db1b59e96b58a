"""`slipstream calibrate`: one profile file for a pair of models on this machine.

Knows only options, progress and printing.
"""

import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from slipstream.bench.calibrate import run
from slipstream.bench.calibrate.report import Calibrated, save_sweep, sweep_values, timed_table
from slipstream.bench.calibrate.sweep import Evidence, sweep
from slipstream.bench.engines import MethodEngines
from slipstream.bench.environment import environment
from slipstream.bench.harness import check_writable, write_json
from slipstream.cli.benchmarks.bench_flags import QuestionFlags, command_line
from slipstream.cli.engine import fetch
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import bars, step_bar
from slipstream.cli.report import figures_console
from slipstream.client.engine import EngineOptions
from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.policy.profile import Profile
from slipstream.core.request.request import NO_DRAFTER
from slipstream.core.types import SamplingParams
from slipstream.drafting.build import DraftModel
from slipstream.options import option, required
from slipstream.plots import check_plot

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class PairFlags:
    """Models, and how they run."""

    target: str = option("smollm2-135m", "Target: an alias, a path or OWNER/NAME of the hub.")
    draft: str = option("glide", "glide, a directory of GliDe weights, or vanilla:MODEL.")
    dtype: str = option("auto", "auto, bfloat16, float16, float32, or q8 (8-bit weights, on CPUs).")
    threads: int | None = option(None, "CPU threads; default: torch's choice.")
    device: str = option("cpu", "cpu, cuda or cuda:N.")

    def engines(self) -> MethodEngines:
        """Find the models, and load none yet. Raises `InvalidRequest` for a draft that is none."""
        if self.draft in ("ngram", NO_DRAFTER):
            raise InvalidRequest(f"the draft is {self.draft}, but only models are calibrated")
        options = EngineOptions(self.dtype, "fast", self.threads, self.device)
        with bars() as progress:
            fetch(self.target, self.draft, progress)
        return MethodEngines(self.target, self.draft, options, sampling=SamplingParams())


@dataclass(frozen=True, slots=True)
class ProfileFlags:
    """Files to write."""

    out: Path = required(
        "The profile; beside GliDe weights, a file named profile.json is their default."
    )
    sweep: Path | None = option(None, "All settings as JSON; default: OUT with .sweep.json.")
    plot: Path | None = option(
        None, "The sweep as PNG or SVG; default: OUT with .png, if matplotlib is here."
    )

    def sweep_path(self) -> Path:
        """Return the file of all settings."""
        return self.sweep or self.out.with_suffix(".sweep.json")

    def plot_path(self) -> Path | None:
        """Return the file of the plot; None for no plot."""
        if self.plot is not None:
            return self.plot
        return None if find_spec("matplotlib") is None else self.out.with_suffix(".png")

    def check(self) -> None:
        """Raise `InvalidRequest` or `TrainingError` for files that can't be written."""
        if self.plot is not None:
            check_plot(self.plot)
        paths = [self.out, self.sweep_path(), *([path] if (path := self.plot_path()) else [])]
        if len(set(paths)) < len(paths):
            raise InvalidRequest("profile, sweep and plot need a file each")
        for path in paths:
            check_writable(path)


@app.command()
@with_flags
def calibrate(
    files: ProfileFlags, models: PairFlags, prompts: QuestionFlags, plan: run.CalibrationPlan
) -> None:
    """Find the fastest way to draft for a pair of models on this machine.

    Measures what steps and tokens cost, records drafts at every position of greedy and sampled
    replies, tries stop policies, thresholds and node budgets on the records, and runs
    the best against the clock. The fastest becomes the profile. Only the first turn of each prompt
    is sent; use prompts like those that will be served.
    """
    plan = replace(plan, questions=prompts.questions())
    files.check()
    engines = models.engines()
    result = _Stages(plan, engines, engines.draft_model(plan.numerics)).run()
    console = figures_console()
    console.print(timed_table(result.timed, result.tried))
    console.print(f"chosen: {result.best.name}", markup=False, soft_wrap=True)
    values = result.file(command_line(), environment(models.device), prompts.facts())
    write_json(files.sweep_path(), sweep_values(result.tried, result.timed))
    if (plot := files.plot_path()) is not None:
        save_sweep(plot, result.tried)
    write_json(files.out, values)
    typer.echo(f"wrote {files.out}", err=True)


class _Stages:
    """The stages, one after the other, each with a bar and the time that is left."""

    def __init__(
        self, plan: run.CalibrationPlan, engines: MethodEngines, model: DraftModel
    ) -> None:
        self._plan = plan
        self._engines = engines
        self._model = model
        self._start_s = time.monotonic()

    def run(self) -> Calibrated:
        plan, engines, model = self._plan, self._engines, self._model
        before = self._before()
        self._print("measuring what steps and rows cost")
        costs, measured = run.measure(plan, engines)
        self._print("recording replies, and what the draft makes of them")
        greedy, sampled = self._record()
        evidence = Evidence(greedy, sampled, costs)
        fitted = run.fitted(before or model.untuned_profile(), evidence)
        num_replies = len(evidence.both)
        self._print(f"trying settings on {evidence.num_tokens} tokens of {num_replies} replies")
        tried = list(sweep(fitted, evidence, depth=plan.depth_of(model)))
        best = run.best_of(tried, evidence, plan.finalists)
        race = run.Race(plan, run.race_entries(before, best), plan.questions)
        race = race.within(self._left_s(), evidence)
        self._print(f"running the best {len(race.entries)} on {len(race.questions)} prompts")
        with step_bar(race.num_steps) as advance:
            timed = run.run_race(race, engines, model, advance=advance)
        tried += [item for item in best if item not in tried]
        return Calibrated(model.pair, timed, tried, evidence, measured, len(race.questions))

    def _before(self) -> Profile | None:
        try:
            return self._model.default_profile()
        except (InvalidRequest, ModelMismatch) as error:
            self._print(f"leaving the draft's own profile aside: {error}")
            return None

    def _record(self) -> Any:
        until = self._start_s + 60 * self._plan.minutes * run.RECORDING_SHARE
        with step_bar(len(self._plan.questions)) as advance:
            return run.record(
                self._plan,
                self._engines,
                self._model,
                is_time_left=lambda: time.monotonic() < until,
                advance=advance,
            )

    def _left_s(self) -> float:
        return self._start_s + 60 * self._plan.minutes - time.monotonic()

    def _print(self, what: str) -> None:
        typer.echo(f"{what}; {max(self._left_s(), 0) / 60:.1f} minutes left", err=True)
