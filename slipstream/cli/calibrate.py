"""`slipstream calibrate`: one profile file for a pair of models on this machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from slipstream.bench.calibrate import Calibration, CalibrationPlan, Replayed
from slipstream.bench.figures import fixed, table
from slipstream.bench.harness import Advance, check_writable
from slipstream.bench.replay import CURVES, FIRST_TOKENS, paces
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

    Records greedy and sampled replies, and what the draft proposes at every token. Stop policies,
    their thresholds and shapes run in replays of them, with the costs measured here. The fastest
    becomes the profile, and is compared with planners that know more. Only the first turn of each
    prompt is sent; use prompts like those that will be served.
    """
    plan = replace(plan, questions=prompts.questions())
    check_writable(out)
    if models.draft in ("ngram", NO_DRAFTER):
        raise InvalidRequest(f"the draft is {models.draft}, but only models are calibrated")
    run = Calibration(plan, models.engines(), _stage)
    found = run.run(_before(run.model, models.profile))
    show(_table(found))
    best = found[0]
    typer.echo(f"chosen: {best.name}")
    show(_planners(run, best.profile))
    machine = machine_facts(models.device)
    notes = {
        "command": machine.pop("command"),
        "revision": machine.pop("git_commit", None),
        "machine": machine,
        "measured": {
            **prompts.facts(),
            "num_prompts": len(run.recordings[0]),
            "num_tokens": sum(len(one.tokens) for of in run.recordings for one in of),
            "chosen": best.name,
            "greedy": best.greedy,
            "sampled": best.sampled,
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


def _planners(run: Calibration, profile: Profile) -> Table:
    """Return the speeds of planners in replays, here and on other processors, and the shares of
    those that know more that the shipped one reaches, also in the first tokens."""
    columns = ("planner", "ranks", "of it", "first", "clairvoyant", "of it")
    shown = table("costs of", "replies", *columns)
    others = {name: replace(run.costs, rows=rows) for name, rows in CURVES.items()}
    for name, costs in {"this machine": run.costs, **others}.items():
        for kind, recordings in zip(("greedy", "sampled"), run.recordings, strict=True):
            ours, ranks, best = paces(recordings, profile, costs)
            first, first_ranks, _ = paces(recordings, profile, costs, FIRST_TOKENS)
            shares = (f"{share:.0%}" for share in (ours / ranks, first / first_ranks, ours / best))
            speeds = (fixed(speed, 2, "x") for speed in (ours, ranks, best))
            cells = (next(speeds), next(speeds), next(shares), next(shares), next(speeds))
            shown.add_row(name, kind, *cells, next(shares))
    return shown


def _table(found: Sequence[Replayed]) -> Table:
    shown = table("profile", "greedy", "sampled", "both")
    for item in found:
        ratios = (item.greedy, item.sampled, item.ratio)
        shown.add_row(item.name, *(fixed(ratio, 2, "x") for ratio in ratios))
    return shown
