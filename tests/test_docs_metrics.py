"""docs/runbook.md tells of every metric there is, by its names, kind, unit and attributes."""

import re
from dataclasses import dataclass
from pathlib import Path

from slipstream.telemetry.catalog import CATALOG, DRAFT, HTTP, ROUTER, TARGET
from support.telemetry.prometheus_names import family, page
from support.telemetry.prometheus_tool import promtool

PAGE = Path(__file__).parents[1] / "docs" / "runbook.md"
SECTIONS = {"Router": ROUTER, "Target": TARGET, "Draft": DRAFT, "HTTP front": HTTP}
COLUMNS = 7
NAMES = re.compile(r"`([a-z_.]+)` `([a-z_]+)`")


@dataclass(frozen=True, slots=True)
class Told:
    """A row: what is compared, and whether it says anything at all beside that."""

    name: str
    exported: str
    kind: str
    unit: str
    attributes: frozenset[str]


def rows() -> dict[tuple[str, str], Told]:
    """Rows by role and name. Fails where one stands there twice."""
    found: dict[tuple[str, str], Told] = {}
    for title, role in SECTIONS.items():
        section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        for line in re.findall(r"^\| `.*$", section, re.MULTILINE):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == COLUMNS and all(cells), line
            name, exported = NAMES.fullmatch(cells[0]).groups()
            attributes = frozenset(re.findall(r"`([^`]+)`", cells[3]))
            assert (role, name) not in found
            found[role, name] = Told(name, exported, cells[1], cells[2], attributes)
    return found


def test_metrics_are_told_of_as_they_are_at_every_service_that_exports_them():
    assert rows() == {
        (role, at.name): Told(at.name, family(at), at.kind.value, at.unit, frozenset(at.attributes))
        for at in CATALOG
        for role in at.roles
    }


def test_every_attribute_has_its_values_told():
    section = PAGE.read_text().split("\n## Values of attributes\n")[1].split("\n## ")[0]
    told = set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))
    used = {attribute for metric in CATALOG for attribute in metric.attributes}
    assert told == used


def test_prometheus_finds_nothing_wrong_with_the_names():
    promtool("check", "metrics", text=page())
