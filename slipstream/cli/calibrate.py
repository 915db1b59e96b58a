"""`slipstream calibrate`: one profile file for a pair of models on this machine.

Knows only options, progress and printing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.table import Table

from slipstream.bench.calibrate import (
    FIRST_SHARE,
    RECORDING_SHARE,
    CalibrationPlan,
    Race,
    Recorded,
    Timed,
    combined,
    finalists,
    fitted,
    name_of,
    record,
    settings,
)
from slipstream.bench.engines import MethodEngines
from slipstream.bench.environment import environment
from slipstream.bench.figures import fixed, table
from slipstream.bench.harness import check_writable
from slipstream.cli.benchmarks.bench_flags import ModelFlags, QuestionFlags, command_line
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console
from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.policy.profile import Profile
from slipstream.core.request.request import NO_DRAFTER
from slipstream.core.types import SamplingParams
from slipstream.drafting.build import DraftModel
from slipstream.drafting.profile_file import profile_file, read_profile
from slipstream.files import write_json
from slipstream.options import required

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class ProfileFlags:
    """File to write."""

    out: Path = required(
        "The profile; beside GliDe weights, a file named profile.json is their default."
    )


@app.command()
@with_flags
def calibrate(
    files: ProfileFlags, models: ModelFlags, prompts: QuestionFlags, plan: CalibrationPlan
) -> None:
    """Find the fastest way to draft for a pair of models on this machine.

    Records how often the draft is right by its confidence, in greedy and sampled replies. Then
    stop policies, their thresholds and shapes run against the clock on a few prompts, and the best
    of them on many. The fastest becomes the profile. Only the first turn of each prompt is sent;
    use prompts like those that will be served.
    """
    plan = replace(plan, questions=prompts.questions())
    check_writable(files.out)
    if models.draft in ("ngram", NO_DRAFTER):
        raise InvalidRequest(f"the draft is {models.draft}, but only models are calibrated")
    engines = models.engines(SamplingParams())
    model = engines.draft_model(plan.numerics)
    found, timed, num_prompts = _Stages(plan, engines, model, models.profile).run()
    figures_console().print(_table(timed))
    best = timed[0]
    typer.echo(f"chosen: {best.name}")
    machine = environment(models.device)
    notes = {
        "command": command_line(),
        "revision": machine.pop("git_commit", None),
        "machine": machine,
        "measured": {
            **prompts.facts(),
            "num_replies": found.num_replies,
            "num_tokens": found.num_tokens,
            "num_timed_prompts": num_prompts,
            "chosen": best.name,
            "greedy": dict(best.greedy),
            "sampled": dict(best.sampled),
        },
    }
    write_json(files.out, profile_file(best.profile, model.pair, notes))
    typer.echo(f"wrote {files.out}", err=True)


class _Stages:
    """The stages, one after the other, each with a bar and the time that is left."""

    def __init__(
        self,
        plan: CalibrationPlan,
        engines: MethodEngines,
        model: DraftModel,
        profile: Path | None,
    ) -> None:
        self._plan = plan
        self._profile = profile
        self._engines = engines
        self._model = model
        self._start_s = time.monotonic()

    def run(self) -> tuple[Recorded, list[Timed], int]:
        """Return what was recorded, the finalists, and the number of their prompts."""
        plan, model = self._plan, self._model
        before = self._before()
        found = self._record()
        base = fitted(before or model.untuned_profile(), found)
        tried = settings(
            base, depth=plan.depth_of(model), has_decision_model=model.decision is not None
        )
        entries = {name_of(profile): profile for profile in tried}
        timed, _ = self._race(entries, found, 60 * plan.minutes * FIRST_SHARE)
        entries = finalists(before, combined(timed), plan.finalists)
        return found, *self._race(entries, found, self._left_s())

    def _before(self) -> Profile | None:
        try:
            if self._profile is not None:
                return read_profile(self._profile, self._model.pair)
            return self._model.default_profile()
        except (InvalidRequest, ModelMismatch) as error:
            self._print(f"leaving the draft's own profile aside: {error}")
            return None

    def _record(self) -> Recorded:
        self._print("recording how often the draft is right")
        until = self._start_s + 60 * self._plan.minutes * RECORDING_SHARE
        with step_bar(len(self._plan.questions)) as advance:
            return record(
                self._plan,
                self._engines,
                self._model,
                is_time_left=lambda: time.monotonic() < until,
                advance=advance,
            )

    def _race(
        self, entries: Mapping[str, Profile], found: Recorded, seconds: float
    ) -> tuple[list[Timed], int]:
        race = Race(self._plan, entries, self._plan.questions).within(seconds, found)
        self._print(f"running {len(entries)} settings on {len(race.questions)} prompts")
        with step_bar(race.num_steps) as advance:
            return race.run(self._engines, self._model, advance=advance), len(race.questions)

    def _left_s(self) -> float:
        return self._start_s + 60 * self._plan.minutes - time.monotonic()

    def _print(self, what: str) -> None:
        typer.echo(f"{what}; {max(self._left_s(), 0) / 60:.1f} minutes left", err=True)


def _table(timed: Sequence[Timed]) -> Table:
    """Return one row for each finalist, the fastest first."""
    shown = table("profile", "greedy", "sampled", "both", "tokens/round", "sampled")
    for item in timed:
        shown.add_row(
            item.name,
            fixed(item.greedy["ratio_decode"], 2, "x"),
            fixed(item.sampled["ratio_decode"], 2, "x"),
            fixed(item.ratio, 2, "x"),
            fixed(item.greedy["mean_acceptance_length"], 2),
            fixed(item.sampled["mean_acceptance_length"], 2),
        )
    return shown
