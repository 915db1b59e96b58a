"""Progress bars on standard error: of the model store's long steps, and of counted steps."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bars:
    """One bar per step; a step of unknown length pulses until the next begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._current: TaskID | None = None

    def step(self, description: str, *, total: int | None = None) -> None:
        """Begin a step of `total` units."""
        self.finish()
        self._current = self._progress.add_task(description, total=total)

    def advance(self, amount: int) -> None:
        """Advance the current step."""
        if self._current is not None:
            self._progress.advance(self._current, amount)

    def finish(self) -> None:
        """End the current step."""
        if self._current is None:
            return
        total = next(task.total for task in self._progress.tasks if task.id == self._current)
        self._progress.update(self._current, total=total or 1, completed=total or 1)


class _Amount(DownloadColumn):
    """Bytes for steps that count them, nothing for the others."""

    def render(self, task):  # type: ignore[no-untyped-def]
        return super().render(task) if (task.total or 0) > 1 else TextColumn("").render(task)


@contextmanager
def bars() -> Iterator[Bars]:
    """Show bars on a terminal, and nothing elsewhere."""
    # A file of its own, because the steps may replace sys.stderr.
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        shown = Bars(progress)
        yield shown
        shown.finish()


@contextmanager
def step_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal; the value advances it by one step of that name."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    is_hidden = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=is_hidden) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)
