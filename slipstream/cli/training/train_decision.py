"""`slipstream train decision`: estimates of acceptance. Knows only options and printing."""

import sys
import time
from dataclasses import replace

import typer

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import count_bar
from slipstream.train.decision_run import DecisionRun, run_decision


@with_flags
def decision(run: DecisionRun) -> None:
    """Train the model that estimates the acceptance probability of each drafted token."""
    run = replace(run, command=("slipstream", *sys.argv[1:]))
    with count_bar("prompts") as progress:
        outcome = run_decision(run, clock=time.monotonic, progress=progress)
    verdict = "better" if outcome.weights else "not better"
    typer.echo(
        f"{verdict} than calibrated confidence on {outcome.num_tokens} held-out tokens:"
        f" {outcome.loss:.4f} and {outcome.calibrated_loss:.4f} nats per token"
    )
    typer.echo(f"weights {outcome.weights}" if outcome.weights else "no weights written")
