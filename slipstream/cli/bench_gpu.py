"""`slipstream bench gpu`: the first hour on a GPU. Knows only options and printing."""

import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from slipstream.bench.gpu.floors import measure_floors
from slipstream.bench.gpu.graph_checks import check_graphs
from slipstream.bench.gpu.steps import GpuStep, Outcome, run_steps, summary
from slipstream.cli.bench_flags import ModelFlags, OutputFlags, machine_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.exit_codes import FAILED
from slipstream.files import write_json
from slipstream.models.format.resolve import find_local
from slipstream.models.loaded import parse_device
from slipstream.options import option

_SHAPE, _NO_SHAPE = "llama-3-8b", "none"
_ROWS = "1,2,4,8,16,32,64,128"


class OneStep(StrEnum):
    """A step that has no command of its own."""

    GRAPHS = "graphs"
    FLOORS = "floors"


@dataclass(frozen=True, slots=True)
class GpuRunFlags:
    """Extent of the run, and the directory of its results."""

    out: Path = option(Path("gpu-results"), "Directory of results.json and its parts.")
    minutes: float = option(9.0, "Time for all steps; what is left then is not run.")
    shape: str | None = option(
        None,
        "Shapes of a model with random weights to time: a published one, a directory, or none.",
        show_default="llama-3-8b, on a CPU none",
    )
    max_new_tokens: int = option(64, "Maximum number of tokens of a reply.")
    limit: int = option(13, "Prompts of a step.")
    step: OneStep | None = option(None, "Run this step alone, in this process.")

    def check(self) -> None:
        """Raise `InvalidRequest` for a time that is none, or a file in the directory's place."""
        if not 0 < self.minutes <= 60:
            raise InvalidRequest(f"minutes is {self.minutes:g}, but must be above 0 and at most 60")
        if self.out.exists() and not self.out.is_dir():
            raise InvalidRequest(f"{self.out} is a file, but results go into a directory")

    def steps(self, models: ModelFlags) -> list[GpuStep]:
        """Return the steps, the most telling first."""
        place = ["--target", models.target, "--draft", models.draft]
        place += ["--dtype", models.dtype, "--device", models.device]
        short = ["--max-new-tokens", str(self.max_new_tokens), "--limit", str(self.limit)]
        shape = self.shape or (_NO_SHAPE if models.device == "cpu" else _SHAPE)
        own = ["bench", "gpu", *place, "--shape", shape, "--step"]
        speed = ["bench", "speed", *place, *short, "--methods"]
        serve = ["bench", "serve", *place, *short, "--methods", "plain,auto", "--repeats", "1"]
        load = ["--concurrency", "1,4,16,64", "--requests-per-worker", "1"]
        no_model, no_shape = _lack(models.target), "no shape" if shape == _NO_SHAPE else ""
        sampled = ("plain,best", "--temperature", "1")
        return [
            GpuStep("graphs", (*own, "graphs"), 120, no_model),
            GpuStep("speed", (*speed, "plain,ngram,best"), 150, no_model),
            GpuStep("speed at temperature 1", (*speed, *sampled), 90, no_model),
            GpuStep("floors", (*own, "floors"), 120, no_shape),
            GpuStep("cost", ("bench", "cost", *place, "--rows", _ROWS), 90, no_model),
            GpuStep("serve", (*serve, *load), 150, no_model),
        ]


@with_flags
def gpu(run: GpuRunFlags, models: ModelFlags, output: OutputFlags) -> None:
    """Check and measure everything on a GPU in under 10 minutes, without a network.

    Each step runs in a process of its own: one that fails is reported, and the rest runs. Graphs
    are compared with eager forwards and outputs with plain decoding; a step is timed beside the
    bandwidth of the memory. A model that is not on this machine is not fetched: its steps are not
    run. Exits with 1 where a step has failed.
    """
    models.check()
    run.check()
    if run.step is not None:
        output.write(_figures(run, run.step, models))
        return
    facts = _facts(models.device)
    run.out.mkdir(parents=True, exist_ok=True)
    steps, results = run.steps(models), []
    with step_bar(len(steps)) as advance:
        for result in run_steps(steps, run.out, seconds=60 * run.minutes, clock=time.monotonic):
            results.append(result)
            advance(result.name)
    values: dict[str, Any] = {"environment": facts, "steps": [asdict(result) for result in results]}
    write_json(run.out / "results.json", values)
    output.write(values)
    figures_console().print(summary(results))
    typer.echo(f"results {run.out / 'results.json'}")
    if any(result.outcome is Outcome.FAILED for result in results):
        raise typer.Exit(FAILED)


def _lack(target: str) -> str:
    """Return why a model is not at hand; "" where it is. Nothing is fetched."""
    try:
        find_local(target)
    except SlipstreamError as error:
        return str(error)
    return ""


def _facts(device: str) -> dict[str, Any]:
    """Return facts of the machine. Raises `InvalidRequest` for a device that is not there."""
    parse_device(device)
    return machine_facts(device)


def _figures(run: GpuRunFlags, step: OneStep, models: ModelFlags) -> dict[str, Any]:
    if step is OneStep.GRAPHS:
        return check_graphs(models.target, models.draft, dtype=models.dtype, device=models.device)
    return measure_floors(
        run.shape or _SHAPE, dtype=models.dtype, device=models.device, numerics="auto"
    )
