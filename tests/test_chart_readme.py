"""The README of the chart lists the values there are. Run as a program, it writes them anew."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "helm/slipstream"
VALUES, PAGE = CHART / "values.yaml", CHART / "README.md"
TWINS = ("router", "draft", "target", "http")
DIFFERENT = {
    *("ports.grpc", "ports.health", "ports.http"),
    *("token.existingSecret", "token.secretKey"),
}
LIST = re.compile(r"(<!-- values -->\n).*?(<!-- end of values -->)", re.DOTALL)
MARK = "# --"


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


def comment(lines: list[str], at: int) -> str | None:
    """What the lines above say, from `# --` on; None where that is not there."""
    above = []
    for line in reversed(lines[:at]):
        if not line.lstrip().startswith("#"):
            return None
        above.insert(0, line.strip().removeprefix(MARK).removeprefix("#").strip())
        if line.strip().startswith(MARK):
            return " ".join(above)
    return None


def table(source: str) -> str:
    """The lists of the page: one for each key at the top, one for the four that are alike."""
    sections = {
        name: list(found)
        for name, found in groupby(values(source), lambda at: at.path.partition(".")[0])
    }
    alike = [row for name in TWINS for row in sections.pop(name)]
    top = [row for name, rows in sections.items() for row in rows if name == rows[0].path]
    parts = [section("At the top", rows_of(top)), section("Every role", twins(alike))]
    rest = {name: rows for name, rows in sections.items() if rows[0].path != name}
    return "\n".join([*parts, *(section(f"`{name}`", rows_of(rest[name])) for name in rest)])


def section(title: str, rows: list[str]) -> str:
    return "\n".join([f"### {title}", "", "| Value | Default | Meaning |", *rows, ""])


def rows_of(found: list[Value]) -> list[str]:
    return ["| --- | --- | --- |", *(row(at.path, shown(at.default), at.text) for at in found)]


def twins(found: list[Value]) -> list[str]:
    """Values of the roles: in one line what is said of all, with the defaults that differ."""
    by_path: dict[tuple[str, str], list[Value]] = {}
    for at in found:
        by_path.setdefault((at.path.partition(".")[2], at.text), []).append(at)
    lines = []
    for (path, text), group in by_path.items():
        whole = len(group) == len(TWINS)
        defaults = [shown(at.default) for at in group]
        same = defaults if len(set(defaults)) > 1 else defaults[:1]
        owners = [at.path.partition(".")[0] for at in group]
        name = f"ROLE.{path}" if whole else ", ".join(f"{owner}.{path}" for owner in owners)
        lines.append(row(name, " / ".join(same), text))
    return ["| --- | --- | --- |", *lines]


def row(name: str, default: str, text: str) -> str:
    return f"| `{name}` | {default} | {text} |"


def shown(value: Any) -> str:
    return f"`{json.dumps(value)}`".replace("|", "\\|")


def with_values(page: str, source: str) -> str:
    return LIST.sub(lambda at: f"{at[1]}{table(source)}{at[2]}", page)


def test_the_page_has_the_values_that_the_chart_has():
    page = PAGE.read_text()
    assert len(LIST.findall(page)) == 1
    assert with_values(page, VALUES.read_text()) == page, (
        "python tests/test_chart_readme.py writes the lists anew"
    )


def test_every_value_says_what_it_is_in_a_sentence():
    found = values(VALUES.read_text())
    assert len(found) > 200
    assert [at.path for at in found if not at.text.endswith(".")] == []


def test_the_roles_have_one_shape_but_for_the_ports_and_the_key_of_the_front():
    found = [at.path.partition(".") for at in values(VALUES.read_text())]
    paths = {
        name: [path for role, _, path in found if role == name and path not in DIFFERENT]
        for name in TWINS
    }
    assert all(paths[name] == paths["router"] for name in TWINS)


def test_a_comment_of_several_lines_is_one_text_and_a_described_map_is_one_value():
    source = "# a heading\na:\n  # -- One,\n  # two.\n  b: 1\n# -- Map.\nc:\n  d: []\ne: {}\n"
    assert values(source) == [
        Value("a.b", 1, "One, two."),
        Value("c", {"d": []}, "Map."),
        Value("e", {}, ""),
    ]


if __name__ == "__main__":
    PAGE.write_text(with_values(PAGE.read_text(), VALUES.read_text()))
