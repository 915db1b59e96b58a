"""Budgets of the code: `python tests/budgets.py [--json]` prints each figure and its limit.

`tests/test_house_rules.py` checks them. A limit is lowered when its figure falls, and never raised:
a change that adds makes room.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from itertools import chain, pairwise
from pathlib import Path

from grimp import build_graph
from networkx import DiGraph, strongly_connected_components

from support.commands import IMPORT_PATH

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
KERNELS = ROOT / "slipstream" / "models" / "native" / "src"
PRODUCT = (ROOT / "slipstream", ROOT / "services")
PACKAGES = (ROOT / "slipstream", *sorted(ROOT.glob("services/*/slipstream_*")))
PORTS_APART = {"bench", "train"}
NOT_SERVING = {"bench", "cli", "sizing", "train"}
"""Packages of the library that serve no requests."""
# Docstrings that begin with one of these lack their verb or their subject.
NO_OPENING = re.compile(
    r"(about|after|as|at|before|by|for|from|in|of|on|over|to|under|until|with|without"
    r"|it|its|that|these|they|this|those|how|what|when|where|whether|which|who|whoever|why"
    r"|the same)\b",
    re.IGNORECASE,
)
PERSONS = re.compile(r"\b(anybody|nobody|somebody|whoever|whomever)\b", re.IGNORECASE)
PERSONS_IN_TESTS = re.compile(
    r"def test_(\w*_)?(anybody|nobody|somebody|whoever|whom|tells|told)(_|\()"
)


def python_files(*folders: Path) -> list[Path]:
    """Return the Python files of folders, at any depth, without generated code."""
    found = chain.from_iterable(sorted(folder.rglob("*.py")) for folder in folders)
    return [path for path in found if "_pb2" not in path.name]


def num_lines(*folders: Path) -> int:
    """Return the number of lines of the Python files of folders."""
    return sum(path.read_text().count("\n") for path in python_files(*folders))


def nodes(*folders: Path) -> Iterator[tuple[Path, ast.AST]]:
    """Yield each syntax node of the Python files of folders, with its file."""
    for path in python_files(*folders):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path, node


def repeated_classes() -> set[str]:
    """Return the names that two or more classes of the serving packages have."""
    names = Counter(
        node.name
        for path, node in nodes(*PRODUCT)
        if isinstance(node, ast.ClassDef) and path.relative_to(ROOT).parts[1] not in NOT_SERVING
    )
    return {name for name, count in names.items() if count > 1}


def port_implementations() -> list[str]:
    """Return the classes on the serving path that implement `Draft` or `Target`."""
    return [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, node in nodes(*PRODUCT)
        if isinstance(node, ast.ClassDef) and _implements_port(node)
        if path.relative_to(ROOT).parts[1] not in PORTS_APART
    ]


def _implements_port(node: ast.ClassDef) -> bool:
    if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
        return False
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    methods = {member.name for member in node.body if isinstance(member, functions)}
    return "release" in methods and bool(methods & {"propose", "verify"})


def largest_folder() -> int:
    """Return the number of Python files in the folder that has most."""
    paths = python_files(*PRODUCT, TESTS)
    return max(Counter(path.parent for path in paths).values())


def bad_openings() -> list[str]:
    """Return the docstrings that begin with a preposition, a pronoun or a question word."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {words.splitlines()[0]}"
        for path, node in nodes(*PRODUCT, SUPPORT)
        for line, words in _docstrings(node)
        if NO_OPENING.match(words)
    ]


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, documented):
        return
    if words := ast.get_docstring(node):
        yield node.body[0].lineno, words
    for member, behind in pairwise(node.body):
        match member, behind:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(words))):
                yield behind.lineno, cleandoc(words)


def functions_with_at() -> list[str]:
    """Return the functions that use `at` as a name, which says nothing of what it holds."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in python_files(*PRODUCT)
        for node in _functions(ast.parse(path.read_text()))
        if any(
            "at" in (getattr(part, "id", None), getattr(part, "arg", None))
            for part in ast.walk(node)
            if isinstance(part, ast.Name | ast.arg)
        )
    ]


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


def persons() -> list[str]:
    """Return the lines of product, kernels and support, and names of tests, that call code a
    person."""
    whole = [*python_files(*PRODUCT, SUPPORT), *sorted(KERNELS.iterdir())]
    return [*_lines_with(PERSONS, whole), *_lines_with(PERSONS_IN_TESTS, python_files(TESTS))]


def _lines_with(words: re.Pattern[str], paths: list[Path]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if words.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def circles() -> list[set[str]]:
    """Return the sets of modules that import each other, lazily or for types alone too."""
    graph = DiGraph()
    modules = build_graph(*(folder.name for folder in PACKAGES), cache_dir=None)
    for name in modules.modules:
        found = modules.find_modules_directly_imported_by(name)
        graph.add_edges_from((name, imported) for imported in found)
    return [found for found in strongly_connected_components(graph) if len(found) > 1]


def hidden_imports() -> list[str]:
    """Return the imports of our own modules that stand in functions of the models."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, function in nodes(ROOT / "slipstream" / "models")
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("slipstream")
    ]


def executed_files(way: str) -> list[str]:
    """Return the files that one request executes, `embedded` or `distributed`."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "executed_files.py"), way],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@dataclass(frozen=True)
class Budget:
    """A figure of the code and its limit."""

    title: str
    limit: int
    measure: Callable[[], int]


BUDGETS = (
    Budget("lines of library and services", 51_880, lambda: num_lines(*PRODUCT)),
    Budget("lines of tests/", 50_327, lambda: num_lines(TESTS)),
    Budget("files of library and services", 337, lambda: len(python_files(*PRODUCT))),
    Budget("files of the largest folder", 20, largest_folder),
    Budget("files executed, embedded", 76, lambda: len(executed_files("embedded"))),
    Budget("files executed, distributed", 121, lambda: len(executed_files("distributed"))),
    Budget("implementations of the two ports", 6, lambda: len(port_implementations())),
    Budget("class names repeated, serving", 0, lambda: len(repeated_classes())),
    Budget("circles of files", 0, lambda: len(circles())),
    Budget("imports in functions of models", 13, lambda: len(hidden_imports())),
    Budget("docstrings without an opening", 0, lambda: len(bad_openings())),
    Budget("functions that use `at` as a name", 0, lambda: len(functions_with_at())),
    Budget("lines that call code a person", 1, lambda: len(persons())),
)


def main(*arguments: str) -> None:
    """Print the table, or with `--json` the figures alone."""
    figures = {budget.title: budget.measure() for budget in BUDGETS}
    lines = [f"{it.title:34}{figures[it.title]:8,} of {it.limit:,}" for it in BUDGETS]
    is_json = "--json" in arguments
    sys.stdout.write((json.dumps(figures, indent=2) if is_json else "\n".join(lines)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
