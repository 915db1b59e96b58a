"""`slipstream train quantise`: a draft's weights in 4 bits. Knows only options and printing."""

import sys
from dataclasses import replace
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TaskID

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.train.four_bits.quantise import QuantiseRun
from slipstream.train.four_bits.quantise import quantise as compute
from slipstream.train.heldout import Heldout


@with_flags
def quantise(
    run: QuantiseRun,
    *,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
) -> None:
    """Write a draft's weights in blocks of 4 bits, rounded by GPTQ, for native code."""
    if threads is not None:
        torch.set_num_threads(threads)
    run = replace(run, command=("slipstream", *sys.argv[1:]))
    with progress_of(Console(file=sys.stderr), MofNCompleteColumn()) as bar:
        stages: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=total)
            bar.update(stages[stage], completed=done)

        outcome = compute(run, progress=progress)
    typer.echo(f"before: {_line(outcome.before)}")
    typer.echo(f"after: {_line(outcome.after)}")
    typer.echo(f"{outcome.path}: {outcome.path.stat().st_size / 1e6:.1f} MB")


def _line(heldout: Heldout) -> str:
    return (
        f"acceptance at lag 0 {heldout.acceptance[0]:.4f}, at lag 4 {heldout.acceptance[4]:.4f},"
        f" {heldout.length:.3f} tokens per round"
    )
