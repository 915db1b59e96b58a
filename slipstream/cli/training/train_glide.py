"""`slipstream train glide`: distil a GliDe draft. Knows only options and printing."""

import sys
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from rich.console import Console

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.options import option
from slipstream.train.group import train_group
from slipstream.train.run import GlideRun, train_glide
from slipstream.train.trainer import Check, TrainHooks, TrainReport


@dataclass(frozen=True, slots=True)
class MachineFlags:
    """Threads and devices that compute."""

    PANEL: ClassVar[str] = "Machine"

    device: str = option("cpu", "cpu, cuda or cuda:N; under torchrun cuda is a GPU for each.")
    threads: int | None = option(
        None, "CPU threads of each process.", min=1, show_default="torch's choice"
    )


@with_flags
def glide(run: GlideRun, machine: MachineFlags) -> None:
    """Train a GliDe draft for a target model.

    Several processes share every batch: torchrun --nproc-per-node 8 --no-python slipstream ...
    """
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    run = replace(run, command=("slipstream", *sys.argv[1:]))
    with train_group(machine.device) as group:
        console = Console(highlight=False, soft_wrap=True, quiet=not group.is_lead)
        with progress_of(console, is_shown=group.is_lead) as bar:
            training = bar.add_task("training", total=1.0)

            def report(result: TrainReport) -> None:
                bar.update(training, completed=result.done)
                console.print(_line(result))

            hooks = TrainHooks(
                time.monotonic, report, lambda check: console.print(_check_line(check))
            )
            train_glide(run, hooks, group=group)


def _line(result: TrainReport) -> str:
    left = result.elapsed_seconds * (1 - result.done) / result.done if result.done else 0.0
    return (
        f"step {result.step}, epoch {result.epoch}: loss {result.loss:.4f}, lr {result.lr:.2e}, "
        f"{result.tokens_per_second:.0f} tokens/s, {left / 60:.0f} min left"
    )


def _check_line(check: Check) -> str:
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
