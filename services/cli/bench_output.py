"""Where the figures of `slipstream bench` go: a bar while they come about, a terminal, a file."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.cli.bench_flags import OutputFlags


def command() -> str:
    """The command line that is running."""
    return shlex.join(["slipstream", *sys.argv[1:]])


@contextmanager
def step_bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, on a terminal only; told the name of what has taken a step."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, disable=not errors.is_terminal
    ) as bar:
        task = bar.add_task("loading", total=total)

        def advance(method: str) -> None:
            bar.update(task, advance=1, description=method)

        yield advance


def figures_console() -> Console:
    """As wide as the terminal; a file takes any width."""
    shown = Console(highlight=False)
    if not shown.is_terminal:
        shown.width = 240
    return shown


def check_writable(output: OutputFlags) -> None:
    """Raises `InvalidRequest` for a file that can't be written, before hours are spent."""
    if output.json is not None:
        from slipstream.bench.environment import check_writable as check

        check(output.json)


def write(output: OutputFlags, values: dict[str, Any]) -> None:
    """Write the file that was asked for, if any."""
    if output.json is None:
        return
    from slipstream.bench.environment import write_json

    write_json(output.json, values)
