"""`slipstream train glide`: distil a GliDe draft. Knows only options and printing."""

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.cli.flags import with_flags
from slipstream.cli.glide_flags import DraftFlags, FileFlags, RecipeFlags, TeamFlags

if TYPE_CHECKING:
    from slipstream.train.parallel import Team
    from slipstream.train.run import GlideRun
    from slipstream.train.trainer import Check, Report


@with_flags
def glide(*, draft: DraftFlags, files: FileFlags, recipe: RecipeFlags, machine: TeamFlags) -> None:
    """Train a GliDe draft for a target model."""
    from slipstream.train.run import GlideRun

    settings = recipe.settings(machine.precision)
    command = ("slipstream", *sys.argv[1:])
    run = GlideRun(**draft.facts(), **files.facts(), settings=settings, command=command).absolute()
    machine.start(partial(_train, run=run, threads=machine.threads), run.work)


def _train(team: "Team", *, run: "GlideRun", threads: int | None) -> None:
    """Run with a progress bar on a terminal and plain lines elsewhere; only the lead speaks."""
    import torch

    from slipstream.train.run import train_glide
    from slipstream.train.trainer import Hooks

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(highlight=False, soft_wrap=True, quiet=not team.is_lead)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    is_plain = not (console.is_terminal and team.is_lead)
    with Progress(*columns, console=console, disable=is_plain) as bar:
        reading = bar.add_task("features", total=1.0)
        training = bar.add_task("training", total=1.0)

        def report(result: "Report") -> None:
            bar.update(training, completed=result.done)
            console.print(_line(result))

        def features(done: int, total: int) -> None:
            bar.update(reading, completed=done / total)

        hooks = Hooks(time.monotonic, report, lambda check: console.print(_check_line(check)))
        train_glide(run, hooks, feature_progress=features, team=team)


def _line(result: "Report") -> str:
    left = result.elapsed_seconds * (1 - result.done) / result.done if result.done else 0.0
    return (
        f"step {result.step}, epoch {result.epoch}: loss {result.loss:.4f}, lr {result.lr:.2e}, "
        f"{result.tokens_per_second:.0f} tokens/s, {left / 60:.0f} min left"
    )


def _check_line(check: "Check") -> str:
    heldout = check.heldout
    lags, depths = (
        " ".join(f"{rate:.3f}" for rate in rates)
        for rates in (heldout.acceptance, heldout.survival)
    )
    best = ", best, exported" if check.is_best else ""
    return (
        f"step {check.step}: acceptance by lag {lags}, chains by depth {depths}, "
        f"{heldout.length:.3f} tokens per round{best}"
    )
