"""docs/scaling.md speaks of series that there are, by labels that those have, in PromQL."""

import re
from pathlib import Path

from support.telemetry.prometheus_names import all_samples
from support.telemetry.prometheus_tool import check_expressions
from support.telemetry.promql import known_labels

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
EXPRESSIONS = re.findall(r"^```promql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_signals_speak_of_series_that_there_are_by_labels_that_those_have():
    assert all(known_labels(expression, all_samples()) for expression in EXPRESSIONS)


def test_series_that_the_text_names_are_there():
    named = set(re.findall(r"`(slipstream_[a-z_]+)", PAGE.read_text()))
    assert named
    assert named <= set(all_samples())


def test_prometheus_can_read_all_signals(tmp_path):
    check_expressions(tmp_path, EXPRESSIONS)
