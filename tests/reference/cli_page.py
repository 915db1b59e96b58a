"""docs/reference/cli.md: every command, argument and option, as Typer writes them down."""

from collections.abc import Iterator
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


def page() -> str:
    found = list(commands())
    links = [f"[`{words}`](#{words.replace(' ', '-')})" for words, _ in found]
    firsts = [cell(text_of(inner).split("\n\n")[0]) for _, inner in found]
    index = table(("Command", "What it does"), zip(links, firsts, strict=True))
    return "\n".join([INTRODUCTION, index, *(section(*command) for command in found)])


def commands() -> Iterator[tuple[str, Any]]:
    """Words of all commands, with Click's objects, in the order of `--help`."""
    yield from _within("slipstream", typer.main.get_command(main.app_of(())))


def _within(words: str, found: Any) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(found, "commands", {}).items():
        real = inner
        if words == "slipstream" and name in main._LATER:
            real = typer.main.get_command(import_module(f"slipstream.cli.{name}").app)
        if hasattr(real, "commands"):
            yield from _within(f"{words} {name}", real)
        else:
            yield f"{words} {name}", real


def section(words: str, inner: Any) -> str:
    role = words.removeprefix("slipstream serve ")
    if role in ROLES:
        configured = CONFIGURED.format(anchor=ROLES[role])
        return f"## {words}\n\n{text_of(inner)}\n\n{configured}"
    context = inner.context_class(inner, info_name=words)
    text = get_docs_for_click(obj=inner, ctx=context, indent=1, name=words)
    return text.replace("[default: (", "[default: ").replace(")]", "]") + "\n"


def text_of(inner: Any) -> str:
    paragraphs = (inner.help or "").strip().split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in paragraphs)
