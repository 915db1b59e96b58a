"""Alerts and dashboard speak of series that there are; alerts fire when they should, as Prometheus
sees it, and Grafana can import the dashboard."""

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream.core import errors
from support.commands import ROOT
from support.telemetry.prometheus_names import all_samples
from support.telemetry.promql import SCRAPED, check_expressions, known_labels, promtool, spoken

FILE = ROOT / "helm/slipstream/alerts/slipstream.yaml"
CASES = Path(__file__).parent / "alerts_cases.yaml"
DASHBOARD = ROOT / "helm/slipstream/dashboards/slipstream.json"
RUNBOOK = ROOT / "docs/runbook.md"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
LABEL = re.compile(r"\$labels\.(\w+)")
FAULTS = re.compile(r'error_type!~\\?"\|([\w|]+)\\?"')
FAULT = re.compile(r"^\| `(\w+)` \| (caller|service) \|", re.MULTILINE)
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS: list[dict[str, Any]] = [at for at in BOARD["panels"] if at["type"] != "row"]
VARIABLES: dict[str, dict[str, Any]] = {at["name"]: at for at in BOARD["templating"]["list"]}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def name(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def series() -> dict[str, frozenset[str]]:
    """Labels of series that are exported, or recorded: those that they are recorded by."""
    found = dict(all_samples())
    for record, expression in RECORDED.items():
        said = spoken(expression)
        found[record] = said.grouping or found[said.selectors[0].name]
    return found


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_a_rule_speaks_of_series_that_there_are_by_labels_that_those_have(rule):
    told = " ".join(rule.get("annotations", {}).values())
    assert set(LABEL.findall(told)) <= known_labels(rule["expr"], series())


@pytest.mark.parametrize("rule", ALERTS, ids=name)
def test_an_alert_says_how_bad_it_is_what_it_is_and_what_to_do(rule):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    about = rule["annotations"]
    assert set(about) == {"summary", "description", "runbook"}
    assert about["summary"].endswith(".") and about["description"].endswith(".")
    page, _, section = about["runbook"].partition("#")
    assert ROOT / page == RUNBOOK
    assert section == name(rule).lower()


def test_the_runbook_has_no_section_of_an_alert_that_there_is_not():
    told = re.findall(r"^### (Slipstream\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert told == [name(rule) for rule in ALERTS]


def test_callers_faults_are_the_same_everywhere_and_burn_no_budget():
    told = dict(FAULT.findall(RUNBOOK.read_text()))
    known = {
        kind.__name__
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.SlipstreamError)
    }
    assert set(told) == known - {"SlipstreamError", "TrainingError"}
    callers = {error for error, whose in told.items() if whose == "caller"}
    found = FAULTS.findall(FILE.read_text()) + FAULTS.findall(DASHBOARD.read_text())
    assert len(found) >= 6
    assert all(set(faults.split("|")) == callers for faults in found)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    """Series of a case that are not expected must not fire."""
    cases = chain(*(test["alert_rule_test"] for test in yaml.safe_load(CASES.read_text())["tests"]))
    fires = {at["alertname"] for at in cases if at["exp_alerts"]}
    assert fires == {name(rule) for rule in ALERTS}


def test_alerts_fire_when_they_should():
    promtool("test", "rules", CASES)


def panel_name(panel: dict[str, Any]) -> str:
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


@pytest.mark.parametrize("panel", PANELS, ids=panel_name)
def test_a_panel_says_what_it_shows_and_in_which_unit(panel):
    assert panel["title"] and panel["targets"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    references = [at["refId"] for at in panel["targets"]]
    assert len(set(references)) == len(references)


def test_panels_show_series_that_services_export_by_labels_that_those_have():
    for panel, target in targets():
        known = known_labels(filled(target["expr"]), all_samples())
        assert set(LEGEND.findall(target["legendFormat"])) <= known, panel_name(panel)


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


def test_panels_of_engines_are_of_the_models_that_are_chosen_for_them():
    rows = {at["title"]: at["gridPos"]["y"] for at in BOARD["panels"] if at["type"] == "row"}
    of_engines = range(rows["Target"], rows["Sessions and store"])
    shown = [at["expr"] for panel, at in targets() if panel["gridPos"]["y"] in of_engines]
    assert rows["Draft"] in of_engines and len(shown) > 20
    assert all('slipstream_model=~"$engines"' in expression for expression in shown)


def test_prometheus_understands_every_expression(tmp_path):
    check_expressions(tmp_path, (filled(target["expr"]) for _, target in targets()))
