"""docs/runbook.md tells of every metric there is, by its names, kind, unit and attributes.
docs/scaling.md speaks of series that there are, by labels that those have, in PromQL."""

import re
from pathlib import Path

from slipstream.telemetry.catalog import CATALOG, DRAFT, HTTP, ROUTER, TARGET
from support.telemetry.prometheus_names import all_samples, family
from support.telemetry.promql import check_expressions, known_labels

DOCS = Path(__file__).parents[1] / "docs"
PAGE, SCALING = ((DOCS / f"{name}.md").read_text() for name in ("runbook", "scaling"))
EXPRESSIONS = re.findall(r"^```promql\n(.*?)^```$", SCALING, re.MULTILINE | re.DOTALL)
SECTIONS = {"Router": ROUTER, "Target": TARGET, "Draft": DRAFT, "HTTP front": HTTP}
COLUMNS = 7
NAMES = re.compile(r"`([a-z_.]+)` `([a-z_]+)`")


def rows() -> dict[tuple[str, str], tuple[object, ...]]:
    """Rows by role and name. Fails where one stands there twice, or has an empty cell."""
    found = {}
    for title, role in SECTIONS.items():
        section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
        for line in re.findall(r"^\| `.*$", section, re.MULTILINE):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == COLUMNS and all(cells), line
            name, exported = NAMES.fullmatch(cells[0]).groups()
            assert (role, name) not in found
            attributes = frozenset(re.findall(r"`([^`]+)`", cells[3]))
            found[role, name] = (exported, cells[1], cells[2], attributes)
    return found


def test_metrics_are_documented_as_every_service_exports_them():
    assert rows() == {
        (role, it.name): (family(it), it.kind.value, it.unit, frozenset(it.attributes))
        for it in CATALOG
        for role in it.roles
    }


def test_every_attribute_has_its_values_documented():
    section = PAGE.split("\n## Values of attributes\n")[1].split("\n## ")[0]
    told = set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))
    assert told == {attribute for metric in CATALOG for attribute in metric.attributes}


def test_signals_speak_of_series_that_there_are_by_labels_that_those_have(tmp_path):
    assert all(known_labels(expression, all_samples()) for expression in EXPRESSIONS)
    named = set(re.findall(r"`(slipstream_[a-z_]+)", SCALING))
    assert named
    assert named <= set(all_samples())
    check_expressions(tmp_path, EXPRESSIONS)
