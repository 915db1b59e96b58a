"""Every command line of these pages is one that the program takes."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer

from slipstream.options import options_of
from slipstream.telemetry.config import TelemetryConfig
from support.deployment.charts import CONFIGS

DOCS = Path(__file__).parents[1] / "docs"
NAMES = ("train-your-own", "benchmarks", "security", "http", "kubernetes", "sizing", "papers")
PAGES = [f"{name}.md" for name in NAMES]
EVERY_PAGE = sorted(
    str(page.relative_to(DOCS))
    for page in DOCS.rglob("*.md")
    if "reference" not in page.relative_to(DOCS).parts  # which is made of the commands themselves
)
INLINE = re.compile(r"`(slipstream [a-z]+ [^`]*)`")
BLOCK = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lines(page):
    text = (DOCS / page).read_text()
    blocks = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    found = [line for line in blocks if line.startswith("slipstream ")]
    return sorted({*found, *INLINE.findall(BLOCK.sub("", text))})


def command(words):
    """The options of the command that the first words name, and what is left of them."""
    from slipstream.cli import main

    groups = {name: import_module(path).app for name, (path, _) in main._LATER.items()}
    if words[0] == "serve":
        roles = [CONFIGS[words[1]]] if words[1] != "ROLE" else CONFIGS.values()  # any will do
        options = [at for kind in (*roles, TelemetryConfig) for at in options_of(kind)]
        return {"--config", *(at.flag for at in options)}, words[2:]
    found = typer.main.get_command(groups.get(words[0], main.app_of(())))
    words = words[1:] if words[0] in groups else words
    while hasattr(found, "commands"):
        found, words = found.commands[words[0]], words[1:]
    return {name for at in found.params for name in (*at.opts, *at.secondary_opts)}, words


@pytest.mark.parametrize("line", [line for page in EVERY_PAGE for line in lines(page)])
def test_a_command_of_a_page_has_the_options_it_is_given(line):
    known, words = command(shlex.split(line, comments=True)[1:])
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", PAGES)
def test_options_that_a_page_names_alone_exist(page):
    known = {option for line in lines(page) for option in command(shlex.split(line)[1:])[0]}
    assert set(re.findall(r"`(--[a-z-]+)", (DOCS / page).read_text())) <= known
