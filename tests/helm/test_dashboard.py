"""The dashboard shows metrics that there are, by labels that they have, and can be imported."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.telemetry.prometheus_names import all_samples
from support.telemetry.prometheus_tool import check_expressions
from support.telemetry.promql import SCRAPED, known_labels

FILE = Path(__file__).parents[2] / "helm/slipstream/dashboards/slipstream.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [at for at in BOARD["panels"] if at["type"] != "row"]
VARIABLES: dict[str, dict[str, Any]] = {at["name"]: at for at in BOARD["templating"]["list"]}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def name(panel: dict[str, Any]) -> str:
    return f"{panel['id']} {panel['title']}"


def targets() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    return ((panel, target) for panel in PANELS for target in panel["targets"])


def filled(expression: str) -> str:
    """Put values for variables, as Grafana does."""
    return VARIABLE.sub(lambda at: "5m" if at[2] == "__rate_interval" else ".*", expression)


def cells(panel: dict[str, Any]) -> Iterator[tuple[int, int]]:
    at = panel["gridPos"]
    for y in range(at["y"], at["y"] + at["h"]):
        for x in range(at["x"], at["x"] + at["w"]):
            yield x, y


def test_grafana_can_import_it_wherever_its_prometheus_is():
    assert "__inputs" not in BOARD and "id" not in BOARD
    assert BOARD["schemaVersion"] >= 39
    assert BOARD["uid"] and BOARD["title"] and BOARD["refresh"]
    assert BOARD["time"] == {"from": "now-1h", "to": "now"}
    assert VARIABLES["datasource"]["type"] == "datasource"
    sources = [at["datasource"] for panel in PANELS for at in (panel, *panel["targets"])]
    assert all(source == SOURCE for source in sources)


def test_panels_have_ids_of_their_own_and_places_of_their_own_within_the_width():
    taken = Counter(cell for panel in BOARD["panels"] for cell in cells(panel))
    assert set(taken.values()) == {1}
    assert all(0 <= x < WIDTH for x, _ in taken)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.parametrize("panel", PANELS, ids=name)
def test_a_panel_says_what_it_shows_and_in_which_unit(panel):
    assert panel["title"] and panel["targets"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    references = [at["refId"] for at in panel["targets"]]
    assert len(set(references)) == len(references)


def test_panels_show_series_that_services_export_by_labels_that_those_have():
    for panel, target in targets():
        known = known_labels(filled(target["expr"]), all_samples())
        assert set(LEGEND.findall(target["legendFormat"])) <= known, name(panel)


def test_every_variable_that_is_used_is_there_and_every_one_there_is_used():
    used = {a or b for _, target in targets() for a, b in VARIABLE.findall(target["expr"])}
    assert used - {"__rate_interval"} == set(VARIABLES) - {"datasource"}


def test_variables_are_asked_of_series_that_have_their_label():
    known = all_samples()
    for at in VARIABLES.values():
        if at["type"] != "query":
            continue
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", at["query"]["query"]).groups()
        names = re.findall(r"slipstream_\w+|gen_ai_\w+(?=\{)", series)
        assert names and all(label in known[one] | SCRAPED for one in names), at["name"]
        assert at["allValue"] == ".*"  # what has no such label belongs to all


def test_prometheus_understands_every_expression(tmp_path):
    check_expressions(tmp_path, (filled(target["expr"]) for _, target in targets()))
