"""`slipstream train decision`: how far to trust a draft. Knows only options and printing."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from slipstream.cli.flags import with_flags

if TYPE_CHECKING:
    from slipstream.train.decision_run import DecisionRun, Outcome
    from slipstream.train.reliability import Figures

Target = Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")]
Data = Annotated[
    list[Path],
    typer.Option(help="JSON lines of prompts that the draft was not trained on; repeatable."),
]
Draft = Annotated[
    str, typer.Option(help="glide (the one shipped) or a directory of weights; written to.")
]
RunDir = Annotated[
    Path | None,
    typer.Option(help="Directory for records, report and plot; default: DRAFT.decision."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1)]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]


@dataclass(frozen=True, slots=True)
class RecordFlags:
    """Options that decide what is recorded."""

    num_prompts: Annotated[int, typer.Option(help="Prompts to decode.", min=10)] = 120
    max_tokens: Annotated[int, typer.Option(help="Longest answer, two per prompt.", min=2)] = 64
    depth: Annotated[
        int | None, typer.Option(help="Tokens drafted per round; default: what the draft can.")
    ] = None
    minutes: Annotated[
        float | None, typer.Option(help="Begin no prompt after so many minutes.")
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the sampled answers.", min=0)] = 0


@dataclass(frozen=True, slots=True)
class FitFlags:
    """Options of the training itself."""

    width: Annotated[int, typer.Option(help="Width of the hidden layer.", min=1)] = 32
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3
    max_epochs: Annotated[int, typer.Option(help="Most passes over the records.", min=1)] = 60


@with_flags
def decision(  # noqa: PLR0913 - one parameter per option or group of them
    *,
    target: Target,
    data: Data,
    rounds: RecordFlags,
    fit: FitFlags,
    draft: Draft = "glide",
    run_dir: RunDir = None,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Train the model that tells how likely each drafted token is to be accepted."""
    from dataclasses import asdict

    from slipstream.client.engine import EngineOptions
    from slipstream.train.decision import DecisionSettings
    from slipstream.train.decision_run import DecisionRun, Recording

    run = DecisionRun(
        target=target,
        draft=draft,
        data=tuple(data),
        work=run_dir,
        engine=EngineOptions(numerics="fast", threads=threads, device=device),
        recording=Recording(**asdict(rounds)),
        settings=DecisionSettings(**asdict(fit), seed=rounds.seed),
        command=("slipstream", *sys.argv[1:]),
    )
    _show(_run(run))


def _run(run: "DecisionRun") -> "Outcome":
    from slipstream.train.decision_run import run_decision

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("prompts", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return run_decision(run, clock=time.monotonic, progress=progress)


def _show(outcome: "Outcome") -> None:
    console = Console(highlight=False, soft_wrap=True)
    report = outcome.report
    for name, mode in report.modes.items():
        table = Table(
            title=f"{name}: {mode.num_tokens} held-out tokens, {mode.acceptance:.1%} accepted"
        )
        for column in ("chance by", "NLL", "Brier", "AUC", "ECE"):
            table.add_column(column, justify="left" if column == "chance by" else "right")
        for estimate, figures in mode.figures.items():
            table.add_row(estimate, *_cells(figures))
        console.print(table)
    console.print(
        f"{report.verdict} than calibrated confidence: {report.gain.nats:+.4f}"
        f" +- {report.gain.error:.4f} nats per token"
    )
    console.print(f"report {outcome.path}, plot {outcome.path.with_suffix('.png')}")
    console.print(f"weights {outcome.weights}" if outcome.weights else "no weights written")


def _cells(figures: "Figures") -> tuple[str, ...]:
    area = "-" if figures.auc is None else f"{figures.auc:.4f}"
    return f"{figures.nll:.4f}", f"{figures.brier:.4f}", area, f"{figures.ece:.4f}"
