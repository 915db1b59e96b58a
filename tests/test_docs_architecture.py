"""ARCHITECTURE.md shows the packages as they import each other: running this file draws it anew."""

import re
from collections.abc import Mapping
from functools import cache

from grimp import build_graph

from support.commands import PACKAGE_DIRS, ROOT

PAGE = ROOT / "ARCHITECTURE.md"
PICTURE = re.compile(r"(?<=<!-- imports -->\n```\n).*?(?=```\n)", re.DOTALL)
LIBRARY = "slipstream"


def packages() -> list[str]:
    """Return the import packages of this checkout."""
    found = (path.parent.name for folder in PACKAGE_DIRS for path in folder.glob("*/__init__.py"))
    return sorted(name for name in found if name.startswith(LIBRARY))


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the parts of the library, and the services, with the parts that each imports."""
    graph = build_graph(*packages(), exclude_type_checking_imports=True)
    parts = {*packages(), *graph.find_children(LIBRARY)} - {LIBRARY}
    for part in parts:
        graph.squash_module(part)
    return {
        part: frozenset(graph.find_modules_directly_imported_by(part) & (parts - {part}))
        for part in parts
    }


@cache
def height(part: str) -> int:
    """Return how many parts the longest way of imports below a part has."""
    return max((1 + height(other) for other in imports()[part]), default=0)


def picture() -> str:
    """Return a line for each part, those that import most layers first."""
    names = {part: part.removeprefix(f"{LIBRARY}.") for part in imports()}
    width = max(map(len, names.values()))
    lines = [
        f"{names[part]:{width}}  ->  {' '.join(sorted(names[other] for other in imports()[part]))}"
        for part in sorted(names, key=lambda part: (-height(part), part))
    ]
    return "".join(f"{line.removesuffix('  ->  ').rstrip()}\n" for line in lines)


def test_the_picture_of_the_packages_is_what_they_import():
    assert PICTURE.findall(PAGE.read_text(encoding="utf-8")) == [picture()]


if __name__ == "__main__":
    PAGE.write_text(PICTURE.sub(picture(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
