"""Marks behind pieces of text: a letter and a colour for each token, by where it came from."""

from collections import Counter
from typing import TextIO

from rich.console import Console
from rich.text import Text

from slipstream.core.origins import Origins, TokenOrigin

_MARKS = {
    TokenOrigin.DRAFT: ("d", "green"),
    TokenOrigin.RUNNER_UP: ("r", "yellow"),
    TokenOrigin.LOOKUP: ("l", "cyan"),
    TokenOrigin.NGRAM_STORE: ("n", "blue"),
    TokenOrigin.LEARNED: ("e", "bright_cyan"),
    TokenOrigin.TARGET: ("t", "magenta"),
    None: ("-", "dim"),
}


class Marks:
    """Writes marks of one answer, and what they mean. In colours where it is a terminal."""

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file, highlight=False)
        self._seen: Counter[TokenOrigin | None] = Counter()

    def mark(self, origins: Origins) -> None:
        """Behind the text of these tokens."""
        self._seen.update(origins)
        if origins:
            inner = Text().join(Text(*_MARKS[origin]) for origin in origins)
            self._write(Text("[", "dim").append_text(inner).append("]", "dim"))

    def legend(self) -> None:
        """How many of each there were."""
        parts = [
            Text(mark, style).append(f" {origin or 'not known'} {self._seen[origin]}", "default")
            for origin, (mark, style) in _MARKS.items()
            if origin is not None or self._seen[origin]
        ]
        self._write(Text(", ").join(parts))

    def _write(self, text: Text) -> None:
        self._console.print(text, end="", soft_wrap=True)
