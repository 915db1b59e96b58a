"""Alert rules speak of series that there are, and fire when they should, as Prometheus sees it."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream.core import errors
from support.telemetry.prometheus_names import all_samples
from support.telemetry.prometheus_tool import promtool
from support.telemetry.promql import known_labels, spoken

ROOT = Path(__file__).parents[2]
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


def name(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def series() -> dict[str, frozenset[str]]:
    """Labels of series that are exported, or recorded: those that they are recorded by."""
    found = dict(all_samples())
    for record, expression in RECORDED.items():
        said = spoken(expression)
        found[record] = said.grouping or found[said.selectors[0].name]
    return found


def cases() -> Iterator[dict[str, Any]]:
    for test in yaml.safe_load(CASES.read_text())["tests"]:
        yield from test["alert_rule_test"]


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
    assert f"\n### {name(rule)}\n" in RUNBOOK.read_text()


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
    """Of several series in one case, those that are not expected must not fire."""
    fires = {at["alertname"] for at in cases() if at["exp_alerts"]}
    assert fires == {name(rule) for rule in ALERTS}


def test_prometheus_takes_the_rules():
    promtool("check", "rules", FILE)


def test_alerts_fire_when_they_should():
    promtool("test", "rules", CASES)
