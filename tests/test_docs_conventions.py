"""docs/semantic-conventions.md has every attribute of ours that services say, and no other.
Lines of all pages fit a screen."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from budgets import PRODUCT, python_files
from slipstream.telemetry.catalog import CATALOG

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "semantic-conventions.md"
ROW = re.compile(r"^\| `(slipstream\.[\w.<>]+)` \|", re.MULTILINE)
METHODS = "slipstream.rpc.v1."
NOT_HERE = ("slipstream/cli", "slipstream/rpc/v1", "slipstream/telemetry/catalog.py")
"""Readers of spans, generated code, and names of metrics, which the runbook has."""
VARIABLE = "<name>"
WIDTH = 100
UNBROKEN = re.compile(r"\s*([|#<>]|!\[|\[[^\]]+\]:)")
"""Beginnings of lines that can't be broken: tables, headings, pictures and definitions."""
MARKER = re.compile(r"^\s*(?:[-*+]\s+|\d+[.)]\s+)?")


def section(title: str) -> str:
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def literals(tree: ast.AST) -> Iterator[str]:
    """Strings of a module; what is filled in later is a variable. Loggers' names are left out."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
            skipped.update(node.args)
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else VARIABLE
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value.replace("{}", VARIABLE)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@cache
def said() -> dict[str, str]:
    """Attributes and prefixes of such that the code speaks of, with a file that does."""
    files = [(str(path.relative_to(ROOT)), path) for path in python_files(*PRODUCT)]
    return {
        text: file
        for file, path in files
        if not file.startswith(NOT_HERE)
        for text in literals(ast.parse(path.read_text()))
        if re.fullmatch(r"slipstream\.[a-z][\w.<>]*", text)
        and not (text.startswith(METHODS) or is_module(text))
    }


def test_every_attribute_that_services_speak_of_is_documented_and_no_other():
    told = set(ROW.findall(section("Attributes")))
    known = said()
    prefixes = {text for text in known if text.endswith(".")}
    assert {text: known[text] for text in known.keys() - prefixes - told} == {}
    assert told - known.keys() == set()
    lost = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in told)]
    assert lost == []


def test_names_that_are_proposed_stand_beside_names_that_there_are():
    rows = re.findall(
        r"^\| `(gen_ai[\w.]+)` \| (.*?) \| `(slipstream[\w.]+)` \|$",
        section("Proposed names"),
        re.MULTILINE,
    )
    assert len(rows) > 20
    assert len({proposed for proposed, _, _ in rows}) == len(rows)
    metrics = {metric.name for metric in CATALOG}
    for proposed, kind, ours in rows:
        assert ours in (metrics if kind == "metric" else said()), proposed


def pages() -> list[Path]:
    """Pages that people write: those of docs/ but the generated ones, and those beside it."""
    docs = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference"]
    beside = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "README")]
    found = [*sorted(docs), *beside, *sorted(ROOT.glob("services/*/README.md"))]
    return [path for path in found if path.name != "compatibility.md"]


def long_lines(text: str) -> Iterator[int]:
    """Numbers of lines that are too long, outside blocks of code, and could be broken."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif is_code or len(line) <= WIDTH or UNBROKEN.match(line):
            continue
        elif " " in MARKER.sub("", line, count=1).strip():
            yield number


def test_lines_of_pages_fit_a_screen():
    found = {path: list(long_lines(path.read_text(encoding="utf-8"))) for path in pages()}
    assert {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines} == {}
