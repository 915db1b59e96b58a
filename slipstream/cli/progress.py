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
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_of(
    *columns: ProgressColumn, console: Console | None = None, is_transient: bool = False
) -> Progress:
    """Return bars that all commands have alike, with these columns, times and the time to go.

    They show on a terminal only, by default standard error.
    """
    # A file of its own, because the steps may replace sys.stderr.
    console = console or Console(file=sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=is_transient,
        disable=not console.is_terminal,
    )


class Bars:
    """One bar per step; a step of unknown length pulses until the next begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._current: TaskID | None = None
        self._total = 1

    def step(self, description: str, *, total: int | None = None) -> None:
        """Begin a step of `total` units."""
        self.finish()
        self._current = self._progress.add_task(description, total=total)
        self._total = total or 1

    def advance(self, amount: int) -> None:
        if self._current is not None:
            self._progress.advance(self._current, amount)

    def finish(self) -> None:
        if self._current is not None:
            self._progress.update(self._current, total=self._total, completed=self._total)


class _Amount(DownloadColumn):
    """Bytes for steps that count them, nothing for the others."""

    def render(self, task):  # type: ignore[no-untyped-def]
        return super().render(task) if (task.total or 0) > 1 else TextColumn("").render(task)


@contextmanager
def bars() -> Iterator[Bars]:
    """Show bars on a terminal, and nothing elsewhere."""
    with progress_of(_Amount()) as progress:
        shown = Bars(progress)
        yield shown
        shown.finish()


@contextmanager
def step_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal; the value advances it by one step of that name."""
    with progress_of(MofNCompleteColumn()) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


@contextmanager
def count_bar(description: str) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal; the value sets how many steps are done, and of how many."""
    with progress_of(MofNCompleteColumn()) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total, **more: bar.update(task, completed=done, total=total, **more)


@contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show on a terminal that one waits, and for how long, below what is written meanwhile."""
    with progress_of(is_transient=True) as bar:
        bar.add_task(description, total=None)
        yield
