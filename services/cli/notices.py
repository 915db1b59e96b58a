"""Warnings of the library as lines on standard error, for commands that set up no logging."""

import logging

import typer


class Notices(logging.Handler):
    """Prints each warning once, as `warning: ` and its message."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        message = record.getMessage()
        if message not in self._shown:
            self._shown.add(message)
            typer.echo(f"warning: {message}", err=True)


def show_notices() -> None:
    """Have warnings printed wherever a logger has no handler of its own, as in most commands."""
    logging.lastResort = Notices()
