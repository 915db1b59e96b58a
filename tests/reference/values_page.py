"""docs/reference/values.md: the values of the chart, out of its values.yaml."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from reference.tables import table

VALUES = Path(__file__).parents[2] / "helm/slipstream/values.yaml"
TWINS = ("router", "draft", "target", "http")
HEADS = ("Value", "Default", "Meaning")
MARK = "# --"
INTRODUCTION = """\
# Values of the chart

What `helm/slipstream` takes, from its `values.yaml`; anything else is refused.
[Kubernetes](../kubernetes.md) says how to install it. `ROLE` stands for `router`, `draft` and
`target`; where their defaults differ, they are in that order.
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that can be set: where it stands, what it is, and what is said of it."""

    path: str
    default: Any
    text: str


def values(source: str) -> list[Value]:
    """All of a file, in its order. One that is said to be something is not taken apart."""
    lines = source.splitlines()
    loader = yaml.SafeLoader(source)
    root = loader.get_single_node()
    assert isinstance(root, yaml.MappingNode)
    return list(_within(root, "", lines, loader))


def _within(
    node: yaml.MappingNode, prefix: str, lines: list[str], loader: yaml.SafeLoader
) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        text = comment(lines, key.start_mark.line)
        if text is None and isinstance(value, yaml.MappingNode) and value.value:
            yield from _within(value, f"{path}.", lines, loader)
        else:
            yield Value(path, loader.construct_object(value, deep=True), text or "")


def comment(lines: list[str], number: int) -> str | None:
    """What the lines above say, from `# --` on; None where that is not there."""
    above = []
    for line in reversed(lines[:number]):
        if not line.lstrip().startswith("#"):
            return None
        above.insert(0, line.strip().removeprefix(MARK).removeprefix("#").strip())
        if line.strip().startswith(MARK):
            return " ".join(above)
    return None


def page() -> str:
    """Return the lists: one for each key at the top, one for the four roles that are alike."""
    sections = {
        name: list(found)
        for name, found in groupby(values(VALUES.read_text()), lambda it: it.path.split(".")[0])
    }
    alike = [value for name in TWINS for value in sections.pop(name)]
    top = [found[0] for name, found in sections.items() if found[0].path == name]
    parts = [
        INTRODUCTION,
        section("At the top", map(row, top)),
        section("Every role", twins(alike)),
    ]
    rest = {name: found for name, found in sections.items() if found[0].path != name}
    return "\n".join([*parts, *(section(f"`{name}`", map(row, rest[name])) for name in rest)])


def section(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    return f"## {title}\n\n{table(HEADS, rows)}"


def row(value: Value) -> tuple[str, ...]:
    return f"`{value.path}`", shown(value.default), value.text


def twins(found: list[Value]) -> Iterator[tuple[str, ...]]:
    """Values of the roles: in one line what is said of all, with the defaults that differ."""
    by_path: dict[tuple[str, str], list[Value]] = {}
    for value in found:
        by_path.setdefault((value.path.partition(".")[2], value.text), []).append(value)
    for (path, text), group in by_path.items():
        defaults = [shown(value.default) for value in group]
        same = defaults if len(set(defaults)) > 1 else defaults[:1]
        whole = len(group) == len(TWINS)
        name = f"ROLE.{path}" if whole else ", ".join(value.path for value in group)
        yield f"`{name}`", " / ".join(same), text


def shown(value: Any) -> str:
    return f"`{json.dumps(value)}`".replace("|", "\\|")
