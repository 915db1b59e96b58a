"""Pieces of Markdown that all generated pages are made of."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table and an empty line behind it."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), ""])


def cell(text: str) -> str:
    """A text as it may stand in a table: one line, without what would end the cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
