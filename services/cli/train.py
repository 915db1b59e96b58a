"""`slipstream train`: make draft weights for a target. Knows only options and printing."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.core.errors import SlipstreamError, TrainingError

if TYPE_CHECKING:
    from slipstream.train.run import GlideRun
    from slipstream.train.trainer import Check, Report

app = typer.Typer(help="Train draft models.", no_args_is_help=True)

_BAD_INPUT = 2


@app.callback()
def _group() -> None:
    """Train draft models."""


@app.command()
def glide(  # noqa: PLR0913 - one parameter per option
    *,
    target: Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")],
    data: Annotated[list[Path], typer.Option(help="JSON lines to train on; repeatable.")],
    out: Annotated[Path, typer.Option(help="Directory for the weights.")],
    layers: Annotated[
        str, typer.Option(help="Target layers to read, as 19,28,29; default: the last.")
    ] = "",
    head_size: Annotated[int, typer.Option(help="Tokens in the trimmed head.")] = 8192,
    steps: Annotated[int | None, typer.Option(help="Length of the run in steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Length of the run in minutes.")] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch, padding included.")] = 4096,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 8e-4,
    block_min: Annotated[int, typer.Option(help="Shortest block of the cross mask.")] = 2,
    block_max: Annotated[int, typer.Option(help="Longest block: the largest lag.")] = 8,
    prompt_weight: Annotated[float, typer.Option(help="Loss weight of prompt positions.")] = 0.5,
    init_from: Annotated[
        Path | None, typer.Option(help="Weights to start from; default: the target's layers.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the checkpoint.")] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Directory for checkpoints; default: OUT.run.")
    ] = None,
    feature_dir: Annotated[
        Path | None, typer.Option(help="Directory for target features; default: below RUN_DIR.")
    ] = None,
    export_minutes: Annotated[float, typer.Option(help="Minutes between checks.")] = 4.0,
    licence: Annotated[str, typer.Option(help="Licence of the target.")] = "unknown",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of data order and masks.")] = 0,
) -> None:
    """Train a GliDe draft for a target model."""
    work = run_dir or out.with_name(out.name + ".run")

    def train() -> None:
        import torch

        from slipstream.train.config import LossSettings, Schedule, TrainSettings
        from slipstream.train.run import GlideRun

        settings = TrainSettings(
            Schedule(steps=steps, minutes=minutes, lr=lr),
            LossSettings(block_min=block_min, block_max=block_max, prompt_weight=prompt_weight),
            batch_tokens=batch_tokens,
            seed=seed,
            export_seconds=60 * export_minutes,
        )
        run = GlideRun(
            target=target,
            data=tuple(data),
            out=out,
            work=work,
            features=feature_dir or work / "features",
            layers=_layer_list(layers),
            head_size=head_size,
            settings=settings,
            init_from=init_from,
            is_resumed=resume,
            licence=licence,
            command=("slipstream", "train", *sys.argv[1:]),
        )
        if threads is not None:
            torch.set_num_threads(threads)
        _train(run)

    _or_exit(train)


def _layer_list(text: str) -> tuple[int, ...]:
    """ "19,28,29" -> (19, 28, 29); empty stands for the target's last layer."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise TrainingError(f"layers must be numbers with commas between, got {text!r}") from None


def _train(run: "GlideRun") -> None:
    """Run with a progress bar on a terminal and plain lines elsewhere."""
    from slipstream.train.run import train_glide
    from slipstream.train.trainer import Hooks

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


def _or_exit(action: Callable[[], None]) -> None:
    """Run `action`; a mistake of the caller becomes one sentence and exit code 2."""
    try:
        action()
    except SlipstreamError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_BAD_INPUT) from None


if __name__ == "__main__":
    app()
