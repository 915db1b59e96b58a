"""docs/reference/cli.md: every command, argument and option, read out of the program itself."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from reference.tables import cell, code, table
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
KINDS = {bool: "-", str: "text", int: "whole number", float: "number", Path: "path"}


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
    parts = [f"## {at.words}", "", text_of(at), ""]
    if role in ROLES:
        return "\n".join([*parts, CONFIGURED.format(anchor=ROLES[role])])
    shown = [param for param in at.inner.params if not param.hidden]
    parts += ["```", usage(at), "```", ""]
    arguments = [param for param in shown if not is_option(param)]
    if arguments:
        rows = [(code(param.name.upper()), cell(param.help or "")) for param in arguments]
        parts += [table(("Argument", "Meaning"), rows)]
    for panel in dict.fromkeys(panel_of(param) for param in shown if is_option(param)):
        rows = [row(at, param) for param in shown if is_option(param) and panel_of(param) == panel]
        parts += [f"**{panel}**", "", table(("Option", "Value", "Default", "Meaning"), rows)]
    return "\n".join(parts)


def usage(at: Command) -> str:
    arguments = [param for param in at.inner.params if not is_option(param)]
    names = [f"{param.name.upper()}{'...' if param.nargs < 0 else ''}" for param in arguments]
    needed = [
        name if param.required else f"[{name}]"
        for name, param in zip(names, arguments, strict=True)
    ]
    options = ["[OPTIONS]"] if len(arguments) < len(at.inner.params) else []
    return " ".join([at.words, *options, *needed])


def row(at: Command, param: Any) -> tuple[str, ...]:
    names = [*param.opts, *param.secondary_opts]
    kind = inspect.signature(at.inner.callback).parameters[param.name].annotation
    return ", ".join(map(code, names)), value_text(kind), default(param), cell(param.help or "")


def value_text(kind: Any) -> str:
    kind = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    if get_origin(kind) is Literal:
        return ", ".join(map(code, get_args(kind)))
    some = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is list:
        return f"{value_text(some[0])}, repeatable"
    if some:  # or nothing
        return value_text(some[0])
    if issubclass(kind, Enum):
        return ", ".join(code(each.value) for each in kind)
    return KINDS[kind]


def default(param: Any) -> str:
    """The default as `--help` says it: what it stands for, where it is nothing by itself."""
    if param.required:
        return "needed"
    if isinstance(param.show_default, str):
        return cell(param.show_default)
    value = param.default
    if callable(value):
        value = value()
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ((), [], ""):
        return "unset"
    values = value if isinstance(value, list | tuple) else [value]
    return code(", ".join(str(getattr(each, "value", each)) for each in values))


def is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def panel_of(param: Any) -> str:
    return str(param.rich_help_panel or "Options")


def text_of(at: Command) -> str:
    paragraphs = (at.inner.help or "").strip().split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in paragraphs)
