"""docs/reference/cli.md: every command, argument and option, as Typer writes them down."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.cli import get_docs_for_click

from reference.tables import cell, table
from slipstream.cli import main

INTRODUCTION = """\
# Command line

Every command with its options, as `--help` shows them. Exit codes: 0 for done, 2 for what can't be
honoured as asked, 1 for any other failure, 130 for interrupted.
"""
CONFIGURED = """\
Its options are [those of its configuration](../services.md#{anchor}), each as a flag
with dashes, beside `--config FILE`.
"""
ROLES = {
    "target": "options-of-the-target",
    "draft": "options-of-the-draft",
    "router": "options-of-the-router",
    "http": "options-of-the-http-front",
}
"""Services, whose flags are not Click's, and where they are listed."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, with the words that call it."""

    words: str
    inner: Any
    """Click's object, whichever package it comes from."""


def page() -> str:
    found = list(commands())
    links = [f"[`{at.words}`](#{at.words.replace(' ', '-')})" for at in found]
    firsts = [cell(text_of(at).split("\n\n")[0]) for at in found]
    index = table(("Command", "What it does"), zip(links, firsts, strict=True))
    return "\n".join([INTRODUCTION, index, *(section(at) for at in found)])


def commands() -> Iterator[Command]:
    """All there are, in the order of `--help`; groups stand for their commands."""
    root = typer.main.get_command(main.app)
    yield from _within("slipstream", root)


def _within(words: str, found: Any) -> Iterator[Command]:
    for name, inner in getattr(found, "commands", {}).items():
        later = main._LATER.get(name) if words == "slipstream" else None
        real = typer.main.get_command(import_module(later[0]).app) if later else inner
        if hasattr(real, "commands"):
            yield from _within(f"{words} {name}", real)
        else:
            yield Command(f"{words} {name}", real)


def section(at: Command) -> str:
    role = at.words.removeprefix("slipstream serve ")
    if role in ROLES:
        configured = CONFIGURED.format(anchor=ROLES[role])
        return f"## {at.words}\n\n{text_of(at)}\n\n{configured}"
    context = at.inner.context_class(at.inner, info_name=at.words)
    text = get_docs_for_click(obj=at.inner, ctx=context, indent=1, name=at.words)
    return text.replace("[default: (", "[default: ").replace(")]", "]") + "\n"


def text_of(at: Command) -> str:
    paragraphs = (at.inner.help or "").strip().split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in paragraphs)
