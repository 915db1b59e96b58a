"""docs/scaling.md speaks of series that there are, by labels that those have, in PromQL."""

import re
from pathlib import Path

import pytest

from support.telemetry.prometheus_names import all_samples
from support.telemetry.prometheus_tool import promtool
from support.telemetry.promql import known_labels

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
EXPRESSIONS = re.findall(r"^```promql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_signal_speaks_of_series_that_there_are_by_labels_that_those_have(expression):
    assert known_labels(expression, all_samples())


def test_series_that_the_text_names_are_there():
    named = set(re.findall(r"`(slipstream_[a-z_]+)", PAGE.read_text()))
    assert named
    assert named <= set(all_samples())


def test_prometheus_can_read_all_signals(tmp_path):
    lines = ["groups:", "  - name: signals", "    rules:"]
    for number, expression in enumerate(EXPRESSIONS):
        lines += [f"      - record: signal:{number}", "        expr: |"]
        lines += [f"          {line}" for line in expression.splitlines()]
    rules = tmp_path / "rules.yaml"
    rules.write_text("\n".join(lines) + "\n")
    promtool("check", "rules", rules)
