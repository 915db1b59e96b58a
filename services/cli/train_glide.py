"""`slipstream train glide`: distil a GliDe draft. Knows only options and printing."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.core.errors import TrainingError

if TYPE_CHECKING:
    from slipstream.train.run import GlideRun
    from slipstream.train.trainer import Check, Report

Target = Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")]
Data = Annotated[list[Path], typer.Option(help="JSON lines to train on; repeatable.")]
Out = Annotated[Path, typer.Option(help="Directory for the weights.")]
Layers = Annotated[str, typer.Option(help="Target layers to read, as 19,28,29; default: the last.")]
NoCross = Annotated[
    bool, typer.Option("--no-cross", help="Read no target layers: no cross-attention.")
]
HeadSize = Annotated[int, typer.Option(help="Tokens in the trimmed head.")]
Steps = Annotated[int | None, typer.Option(help="Length of the run in steps.")]
Minutes = Annotated[float | None, typer.Option(help="Length of the run in minutes.")]
BatchTokens = Annotated[int, typer.Option(help="Tokens in a batch, padding included.")]
Lr = Annotated[float, typer.Option(help="Peak learning rate.")]
BlockMin = Annotated[int, typer.Option(help="Shortest block of the cross mask.")]
BlockMax = Annotated[int, typer.Option(help="Longest block: the largest lag.")]
PromptWeight = Annotated[float, typer.Option(help="Loss weight of prompt positions.")]
InitFrom = Annotated[
    Path | None, typer.Option(help="Weights to start from; default: the target's layers.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")]
RunDir = Annotated[Path | None, typer.Option(help="Directory for checkpoints; default: OUT.run.")]
FeatureDir = Annotated[
    Path | None, typer.Option(help="Directory for target features; default: below RUN_DIR.")
]
ExportMinutes = Annotated[float, typer.Option(help="Minutes between held-out checks.")]
Heldout = Annotated[int, typer.Option(help="Prompts held out for the checks.", min=1)]
Licence = Annotated[str, typer.Option(help="Licence of the target, for the provenance.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of data order and masks.", min=0)]


def glide(  # noqa: PLR0913 - one parameter per option
    *,
    target: Target,
    data: Data,
    out: Out,
    layers: Layers = "",
    no_cross: NoCross = False,
    head_size: HeadSize = 8192,
    steps: Steps = None,
    minutes: Minutes = None,
    batch_tokens: BatchTokens = 4096,
    lr: Lr = 8e-4,
    block_min: BlockMin = 2,
    block_max: BlockMax = 8,
    prompt_weight: PromptWeight = 0.5,
    init_from: InitFrom = None,
    resume: Resume = False,
    run_dir: RunDir = None,
    feature_dir: FeatureDir = None,
    export_minutes: ExportMinutes = 4.0,
    heldout: Heldout = 60,
    licence: Licence = "unknown",
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Train a GliDe draft for a target model."""
    work = run_dir or out.with_name(out.name + ".run")
    length = {"steps": steps, "minutes": minutes, "lr": lr}
    loss = {"block_min": block_min, "block_max": block_max, "prompt_weight": prompt_weight}
    checks = {"num_heldout": heldout, "export_seconds": 60 * export_minutes}
    rest = {"batch_tokens": batch_tokens, "seed": seed, **checks}
    places = {"out": out, "work": work, "features": feature_dir or work / "features"}
    draft = {"head_size": head_size, "init_from": init_from, "is_resumed": resume}
    given = {"data": tuple(data), "layers": _layers_read(layers, is_none=no_cross)}
    files = {"target": target, "licence": licence, **given, **places, **draft}
    _train(_glide_run(length, loss, rest, files), threads)


def _glide_run(
    length: dict[str, Any],
    loss: dict[str, Any],
    rest: dict[str, Any],
    files: dict[str, Any],
) -> "GlideRun":
    from slipstream.train.config import LossSettings, Schedule, TrainSettings
    from slipstream.train.run import GlideRun

    settings = TrainSettings(Schedule(**length), LossSettings(**loss), **rest)
    command = ("slipstream", *sys.argv[1:])
    return GlideRun(**files, settings=settings, command=command)


def _layers_read(text: str, *, is_none: bool) -> tuple[int, ...] | None:
    """From 19,28,29 to its numbers; None, for no text, stands for the target's last layer."""
    if text and is_none:
        raise TrainingError(f"--no-cross reads no layers, but --layers names {text}")
    if not text:
        return () if is_none else None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TrainingError(f"layers must be numbers with commas between, got {text!r}") from None


def _train(run: "GlideRun", threads: int | None) -> None:
    """Run with a progress bar on a terminal and plain lines elsewhere."""
    import torch

    from slipstream.train.run import train_glide
    from slipstream.train.trainer import Hooks

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        reading = bar.add_task("features", total=1.0)
        training = bar.add_task("training", total=1.0)

        def report(result: "Report") -> None:
            bar.update(training, completed=result.done)
            console.print(_line(result))

        hooks = Hooks(time.monotonic, report, lambda check: console.print(_check_line(check)))
        train_glide(
            run,
            hooks,
            feature_progress=lambda done, total: bar.update(reading, completed=done / total),
        )


def _line(result: "Report") -> str:
    left = result.elapsed_seconds * (1 - result.done) / result.done if result.done else 0.0
    return (
        f"step {result.step}, epoch {result.epoch}: loss {result.loss:.4f}, lr {result.lr:.2e}, "
        f"{result.tokens_per_second:.0f} tokens/s, {left / 60:.0f} min left"
    )


def _check_line(check: "Check") -> str:
    rates = " ".join(f"{rate:.3f}" for rate in check.acceptance)
    best = ", best, exported" if check.is_best else ""
    return f"step {check.step}: acceptance by lag {rates}, {check.score:.3f} accepted of 4{best}"
