"""`slipstream train glide`: distil a GliDe draft. Knows only options and printing."""

import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import progress_of
from slipstream.core.errors import TrainingError
from slipstream.options import option, required
from slipstream.train.config import Precision, TrainSettings

if TYPE_CHECKING:
    from slipstream.train.group import TrainGroup, Work
    from slipstream.train.run import GlideRun
    from slipstream.train.trainer import Check, TrainReport


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFlags:
    """The draft to train."""

    PANEL: ClassVar[str] = "Draft"

    target: str = required("Target model: an alias, a path or a hub id.")
    layers: str = option("", "Target layers to read, as 19,28,29.", show_default="the last")
    no_cross: bool = option(False, "Read no target layers: a draft without cross-attention.")
    num_layers: int = option(1, "Layers of the draft, each with all cross-attentions.")
    head_size: int = option(8192, "Tokens in the trimmed head.")
    init_from: Path | None = option(
        None, "Weights to start from.", show_default="the target's layers"
    )

    def facts(self) -> dict[str, Any]:
        """Return these by the names of a run. Raises `TrainingError` for layers that can't be."""
        return {
            "target": self.target,
            "layers": _layers_read(self.layers, is_none=self.no_cross),
            "num_layers": self.num_layers,
            "head_size": self.head_size,
            "init_from": self.init_from,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFlags:
    """Files and directories."""

    PANEL: ClassVar[str] = "Files"

    data: tuple[Path, ...] = required(
        "JSON lines to train on, or a directory of shards; repeatable."
    )
    out: Path = required("Directory for the weights.")
    export_hf: Path | None = option(
        None,
        "Also write a --no-cross draft there, as a checkpoint that transformers loads.",
        show_default="nowhere",
    )
    run_dir: Path | None = option(
        None, "Directory for checkpoints and plots.", show_default="OUT.run"
    )
    feature_dir: Path | None = option(
        None,
        "Directory for target features, which several runs may share.",
        show_default="RUN_DIR/features",
    )
    feature_gb: float | None = option(
        None,
        "GB on disk for target features; the others are computed anew in each batch.",
        show_default="no bound",
    )
    resume: bool = option(False, "Continue from the checkpoint.")
    licence: str = option("unknown", "Licence of the target, for the provenance.")

    def facts(self) -> dict[str, Any]:
        """Return these by the names of a run."""
        work = self.run_dir or self.out.with_name(self.out.name + ".run")
        return {
            "data": self.data,
            "out": self.out,
            "export_hf": self.export_hf,
            "work": work,
            "features": self.feature_dir or work / "features",
            "feature_gb": float("inf") if self.feature_gb is None else self.feature_gb,
            "is_resumed": self.resume,
            "licence": self.licence,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutFlags:
    """Checks of the draft on held-out prompts."""

    PANEL: ClassVar[str] = "Checks"

    export_minutes: float = option(4.0, "Minutes between held-out checks.")
    heldout: int = option(60, "Prompts held out for the checks.", min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamFlags:
    """Processes, threads and devices that compute."""

    PANEL: ClassVar[str] = "Machine"

    device: str = option("cpu", "cpu, cuda or cuda:N.")
    precision: str = option("bfloat16", "Type of matrix products: bfloat16 or float32.")
    threads: int | None = option(
        None, "CPU threads of each process.", min=1, show_default="torch's choice"
    )
    nproc: int = option(
        1,
        "Processes on this machine, with --device cuda one for each GPU; under torchrun, "
        "leave it at 1.",
        min=1,
    )
    ray: bool = option(False, "Train in Ray workers, with --device cuda one for each GPU.")
    ray_workers: int | None = option(None, "Number of Ray workers; default: 1.", min=1)

    def start(self, work: "Work", directory: Path) -> None:
        """Run `work` in all processes; Ray keeps its records below `directory`."""
        from slipstream.train.group import run_group, run_ray_group

        if self.ray_workers is not None and not self.ray:
            raise TrainingError("--ray-workers needs --ray")
        if not self.ray:
            run_group(work, device=self.device, num_processes=self.nproc)
            return
        if self.nproc > 1 or self.device not in ("cpu", "cuda"):
            raise TrainingError("Ray places its workers itself: drop --nproc and GPU numbers")
        num_workers, has_gpus = self.ray_workers or 1, self.device == "cuda"
        place = directory / "ray"
        run_ray_group(work, num_workers=num_workers, has_gpus=has_gpus, directory=place)


@with_flags
def glide(
    draft: DraftFlags,
    files: DirectoryFlags,
    recipe: TrainSettings,
    checks: HeldoutFlags,
    machine: TeamFlags,
) -> None:
    """Train a GliDe draft for a target model."""
    from slipstream.train.run import GlideRun

    if machine.precision not in list(Precision):
        raise TrainingError(f"the precision is {machine.precision!r}, not bfloat16 or float32")
    settings = replace(
        recipe,
        precision=Precision(machine.precision),
        num_heldout=checks.heldout,
        export_seconds=60 * checks.export_minutes,
    )
    command = ("slipstream", *sys.argv[1:])
    run = GlideRun(**draft.facts(), **files.facts(), settings=settings, command=command).absolute()
    machine.start(partial(_train, run=run, threads=machine.threads), run.work)


def _train(group: "TrainGroup", *, run: "GlideRun", threads: int | None) -> None:
    """Run with a progress bar on a terminal and plain lines elsewhere; only the lead speaks."""
    import torch

    from slipstream.train.run import train_glide
    from slipstream.train.trainer import TrainHooks

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(highlight=False, soft_wrap=True, quiet=not group.is_lead)
    with progress_of(console, is_shown=group.is_lead) as bar:
        reading = bar.add_task("features", total=1.0)
        training = bar.add_task("training", total=1.0)

        def report(result: "TrainReport") -> None:
            bar.update(training, completed=result.done)
            console.print(_line(result))

        def features(done: int, total: int) -> None:
            bar.update(reading, completed=done / total)

        hooks = TrainHooks(time.monotonic, report, lambda check: console.print(_check_line(check)))
        train_glide(run, hooks, feature_progress=features, group=group)


def _line(result: "TrainReport") -> str:
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


def _layers_read(text: str, *, is_none: bool) -> tuple[int, ...] | None:
    """Return the numbers of 19,28,29; None, for no text, stands for the target's last layer."""
    if text and is_none:
        raise TrainingError(f"--no-cross reads no layers, but --layers names {text}")
    if not text:
        return () if is_none else None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TrainingError(f"layers must be numbers with commas between, got {text!r}") from None
