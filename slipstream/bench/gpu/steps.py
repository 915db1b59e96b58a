"""Steps of the first hour on a GPU: commands, each in a process of its own and with a time limit.

A GPU that has refused one kernel refuses all that follow in the same process. So a step that fails
takes no other with it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from slipstream.bench.figures import fixed, table
from slipstream.core.round import Clock

_LEAST_S = 5.0
"""A step is not begun with less time left."""
_SHOWN_LINES = 80


@dataclass(frozen=True, slots=True)
class GpuStep:
    """A command of `slipstream` that writes its figures to the file given after `--json`; what it
    `lacks` keeps it from running."""

    name: str
    arguments: tuple[str, ...]
    max_s: float
    lacks: str = ""


class Outcome(StrEnum):
    """End of a step."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step; `reason` says why it failed or was not run."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    output: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def run_steps(
    steps: Sequence[GpuStep], folder: Path, *, seconds: float, clock: Clock
) -> Iterator[StepResult]:
    """Run steps one after the other, within so many seconds, and yield what comes of each."""
    end_s = clock() + seconds
    for step in steps:
        left_s = end_s - clock()
        if step.lacks or left_s < _LEAST_S:
            reason = step.lacks or "no time was left"
            yield StepResult(step.name, Outcome.NOT_RUN, reason=reason)
        else:
            yield run_step(step, folder, min(step.max_s, left_s), clock)


def run_step(step: GpuStep, folder: Path, max_s: float, clock: Clock) -> StepResult:
    """Run a step; it fails where it exits with an error, takes too long, or its figures do."""
    file, began_s = folder / f"{step.name.replace(' ', '-')}.json", clock()
    command = [sys.executable, "-m", "slipstream.cli.main", "--quiet", *step.arguments]
    try:
        done = subprocess.run(
            [*command, "--json", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max_s,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(step, max_s, f"it took more than {max_s:.0f} s", "")
    took_s, lines = clock() - began_s, done.stdout.strip().splitlines()
    output = "\n".join(lines[-_SHOWN_LINES:])
    if done.returncode:
        said = lines[-1] if lines else "no word"
        return _failed(step, took_s, f"exit code {done.returncode}: {said}", output)
    figures = json.loads(file.read_text(encoding="utf-8"))
    faults = list(found_faults(figures))
    if faults:
        reason = f"{len(faults)} differ, first {faults[0]}"
        return StepResult(step.name, Outcome.FAILED, took_s, reason, output, figures)
    return StepResult(step.name, Outcome.PASSED, took_s, output=output, figures=figures)


def found_faults(figures: Any, path: str = "") -> Iterator[str]:
    """Yield where figures say that what must be the same is not."""
    if isinstance(figures, list):
        for index, value in enumerate(figures):
            yield from found_faults(value, f"{path}[{index}]")
    elif isinstance(figures, dict):
        if any(is_fault(figures) for is_fault in _FAULTS):
            yield path or "the figures"
        for name, value in figures.items():
            yield from found_faults(value, f"{path}/{name}")


_FAULTS: tuple[Callable[[dict[str, Any]], bool], ...] = (
    lambda of: of.get("is_equal") is False,
    lambda of: of.get("identity") == "different" and bool(of.get("identity_promised")),
    lambda of: bool(of.get("expected")) and of.get("identical", 0) < of.get("outputs", 0),
)


def _failed(step: GpuStep, seconds: float, reason: str, output: str) -> StepResult:
    return StepResult(step.name, Outcome.FAILED, seconds, reason, output)


def summary(results: Sequence[StepResult]) -> Table:
    """Return what came of each step."""
    shown = table("step", "seconds", "outcome", "reason", title="Steps")
    for result in results:
        shown.add_row(result.name, fixed(result.seconds, 1), result.outcome, result.reason)
    return shown
