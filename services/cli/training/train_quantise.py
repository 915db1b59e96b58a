"""`slipstream train quantise`: a draft's weights in 4 bits. Knows only options and printing."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, TaskID

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.options import option, required

if TYPE_CHECKING:
    from slipstream.train.four_bits.quantise import QuantiseOutcome, QuantiseRun
    from slipstream.train.heldout import Heldout


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantiseFlags:
    """Models and text of a run."""

    target: str = required("Target model: an alias, a path or a hub id.")
    data: tuple[Path, ...] = required(
        "JSON lines that the target wrote, or a directory of shards of `train data`; repeatable."
    )
    draft: str = option("glide", "glide (the one shipped) or a directory of weights; written to.")
    num_conversations: int = option(84, "Conversations to read.", min=1)
    num_heldout: int = option(60, "Other prompts, to measure acceptance with.", min=1)
    seed: int = option(0, "Seed that draws the conversations to read.", min=0)
    device: str = option("cpu", "cpu, cuda or cuda:N.")


@with_flags
def quantise(
    flags: QuantiseFlags,
    *,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
) -> None:
    """Write a draft's weights in blocks of 4 bits, rounded by GPTQ, for native code."""
    import torch

    from slipstream.train.four_bits.quantise import QuantiseRun

    if threads is not None:
        torch.set_num_threads(threads)
    outcome = _run(QuantiseRun(**asdict(flags), command=("slipstream", *sys.argv[1:])))
    typer.echo(f"before: {_line(outcome.before)}")
    typer.echo(f"after: {_line(outcome.after)}")
    typer.echo(f"{outcome.path}: {outcome.path.stat().st_size / 1e6:.1f} MB")


def _run(run: "QuantiseRun") -> "QuantiseOutcome":
    from slipstream.train.four_bits.quantise import quantise as compute

    with progress_of(Console(file=sys.stderr), MofNCompleteColumn()) as bar:
        stages: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=total)
            bar.update(stages[stage], completed=done)

        return compute(run, progress=progress)


def _line(heldout: "Heldout") -> str:
    return (
        f"acceptance at lag 0 {heldout.acceptance[0]:.4f}, at lag 4 {heldout.acceptance[4]:.4f},"
        f" {heldout.length:.3f} tokens per round"
    )
