"""`slipstream train decision`: estimates of acceptance. Knows only options and printing."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import count_bar
from slipstream.options import option, required

if TYPE_CHECKING:
    from slipstream.train.decision_report import Figures
    from slipstream.train.decision_run import DecisionOutcome, DecisionRun


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFlags:
    """Models, files and threads of a run."""

    target: str = required("Target model: an alias, a path or a hub id.")
    data: tuple[Path, ...] = required(
        "JSON lines of prompts that the draft was not trained on; repeatable."
    )
    draft: str = option("glide", "glide (the one shipped) or a directory of weights; written to.")
    run_dir: Path | None = option(
        None, "Directory for records, report and plot; default: DRAFT.decision."
    )
    threads: int | None = option(None, "CPU threads.", min=1)
    device: str = option("cpu", "cpu, cuda or cuda:N.")


@dataclass(frozen=True, slots=True)
class RecordFlags:
    """Replies to record."""

    num_prompts: int = option(120, "Prompts to decode.", min=10)
    max_tokens: int = option(64, "Longest answer, of which each prompt has two.", min=2)
    depth: int | None = option(
        None, "Tokens drafted per round; default: the most that the draft can."
    )
    minutes: float | None = option(None, "Begin no prompt after so many minutes.")
    seed: int = option(0, "Seed of the sampled answers.", min=0)


@dataclass(frozen=True, slots=True)
class FitFlags:
    """The model, and how it is trained."""

    width: int = option(32, "Width of the hidden layer.", min=1)
    lr: float = option(1e-3, "Learning rate.")
    max_epochs: int = option(60, "Maximum number of passes over the records.", min=1)


@with_flags
def decision(flags: DecisionFlags, rounds: RecordFlags, fit: FitFlags) -> None:
    """Train the model that estimates the acceptance probability of each drafted token."""
    from slipstream.client.engine import EngineOptions
    from slipstream.train.decision import DecisionSettings
    from slipstream.train.decision_run import DecisionRun, RecordingPlan

    run = DecisionRun(
        target=flags.target,
        draft=flags.draft,
        data=flags.data,
        work=flags.run_dir,
        engine=EngineOptions(numerics="fast", threads=flags.threads, device=flags.device),
        recording=RecordingPlan(**asdict(rounds)),
        settings=DecisionSettings(**asdict(fit), seed=rounds.seed),
        command=("slipstream", *sys.argv[1:]),
    )
    _show(_run(run))


def _run(run: "DecisionRun") -> "DecisionOutcome":
    from slipstream.train.decision_run import run_decision

    with count_bar("prompts") as progress:
        return run_decision(run, clock=time.monotonic, progress=progress)


def _show(outcome: "DecisionOutcome") -> None:
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
