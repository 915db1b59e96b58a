"""`slipstream calibrate`: one profile file for a pair of models on this machine.

Knows only options, progress and printing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from slipstream.bench.calibrate import (
    FIRST_SHARE,
    RECORDING_SHARE,
    CalibrationPlan,
    Recorded,
    Timed,
    combined,
    finalists,
    fitted,
    name_of,
    prompts_within,
    race,
    record,
    settings,
)
from slipstream.bench.engines import MethodEngines
from slipstream.bench.figures import fixed, table
from slipstream.bench.harness import check_writable
from slipstream.cli.bench_flags import ModelFlags, QuestionFlags, machine_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import show
from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.policy.profile import Profile
from slipstream.core.request.request import NO_DRAFTER
from slipstream.drafting.build import DraftModel
from slipstream.drafting.profile_file import profile_file, read_profile
from slipstream.files import write_json

app = typer.Typer(add_completion=False)


Out = Annotated[
    Path,
    typer.Option(
        help="The profile; beside GliDe weights, a file named profile.json is their default."
    ),
]


@app.command()
@with_flags
def calibrate(
    *, out: Out, models: ModelFlags, prompts: QuestionFlags, plan: CalibrationPlan
) -> None:
    """Find the fastest way to draft for a pair of models on this machine.

    Records how often the draft is right by its confidence, in greedy and sampled replies. Then
    stop policies, their thresholds and shapes run against the clock on a few prompts, and the best
    of them on many. The fastest becomes the profile. Only the first turn of each prompt is sent;
    use prompts like those that will be served.
    """
    plan = replace(plan, questions=prompts.questions())
    check_writable(out)
    if models.draft in ("ngram", NO_DRAFTER):
        raise InvalidRequest(f"the draft is {models.draft}, but only models are calibrated")
    engines = models.engines()
    model = engines.draft_model()
    found, timed, num_prompts = _run(plan, engines, model, _before(model, models.profile))
    show(_table(timed))
    best = timed[0]
    typer.echo(f"chosen: {best.name}")
    machine = machine_facts(models.device)
    notes = {
        "command": machine.pop("command"),
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
    write_json(out, profile_file(best.profile, model.pair, notes))
    typer.echo(f"wrote {out}", err=True)


def _before(model: DraftModel, profile: Path | None) -> Profile | None:
    try:
        return model.default_profile() if profile is None else read_profile(profile, model.pair)
    except (InvalidRequest, ModelMismatch) as error:
        typer.echo(f"leaving the draft's own profile aside: {error}", err=True)
        return None


def _run(
    plan: CalibrationPlan, engines: MethodEngines, model: DraftModel, before: Profile | None
) -> tuple[Recorded, list[Timed], int]:
    start_s, seconds = time.monotonic(), 60 * plan.minutes

    def left_s() -> float:
        return start_s + seconds - time.monotonic()

    def timed(entries: Mapping[str, Profile], within_s: float) -> tuple[list[Timed], int]:
        questions = prompts_within(plan, len(entries), within_s, found)
        what = f"running {len(entries)} settings on {len(questions)} prompts"
        typer.echo(f"{what}; {max(left_s(), 0) / 60:.1f} minutes left", err=True)
        part = replace(plan, questions=questions)
        with step_bar(2 * (len(entries) + 1) * (len(questions) + 1)) as advance:
            return race(part, entries, engines, model, advance=advance), len(questions)

    typer.echo("recording how often the draft is right", err=True)
    until_s = seconds * (1 - RECORDING_SHARE)
    with step_bar(len(plan.questions)) as advance:
        found = record(
            plan, engines, model, is_time_left=lambda: left_s() > until_s, advance=advance
        )
    base = fitted(before or model.untuned_profile(), found)
    has_decision = model.decision is not None
    tried = settings(base, depth=plan.depth_of(model), has_decision_model=has_decision)
    first, _ = timed({name_of(profile): profile for profile in tried}, seconds * FIRST_SHARE)
    return found, *timed(finalists(before, combined(first), plan.finalists), left_s())


def _table(timed: Sequence[Timed]) -> Table:
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
