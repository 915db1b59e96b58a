"""Shows the model store's long steps as bars on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Bars:
    """One bar per step; a step of unknown length pulses until the next begins."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._current: TaskID | None = None

    def step(self, description: str, *, total: int | None = None) -> None:
        self.finish()
        self._current = self._progress.add_task(description, total=total)

    def advance(self, amount: int) -> None:
        if self._current is not None:
            self._progress.advance(self._current, amount)

    def finish(self) -> None:
        """The last step has ended."""
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
    """Progress on a terminal; elsewhere one line per step would only be noise in a log."""
    # A file of its own, because what we wait for may set sys.stderr aside.
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        shown = Bars(progress)
        yield shown
        shown.finish()
