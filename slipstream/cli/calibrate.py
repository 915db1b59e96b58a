"""`slipstream calibrate`: one profile file for a pair of models on this machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from slipstream.bench.calibrate import Calibration, CalibrationPlan, Timed
from slipstream.bench.figures import fixed, table
from slipstream.bench.harness import Advance, check_writable
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
    run = Calibration(plan, models.engines(), _stage)
    timed = run.run(_before(run.model, models.profile))
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
            "num_replies": run.num_replies,
            "num_tokens": run.num_tokens,
            "num_timed_prompts": run.num_timed,
            "chosen": best.name,
            "greedy": dict(best.greedy),
            "sampled": dict(best.sampled),
        },
    }
    write_json(out, profile_file(best.profile, run.model.pair, notes))
    typer.echo(f"wrote {out}", err=True)


def _before(model: DraftModel, profile: Path | None) -> Profile | None:
    try:
        return model.default_profile() if profile is None else read_profile(profile, model.pair)
    except (InvalidRequest, ModelMismatch) as error:
        typer.echo(f"leaving the draft's own profile aside: {error}", err=True)
        return None


@contextmanager
def _stage(text: str, total: int) -> Iterator[Advance]:
    typer.echo(text, err=True)
    with step_bar(total) as advance:
        yield advance


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
