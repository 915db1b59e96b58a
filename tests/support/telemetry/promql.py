"""Series and labels of a PromQL expression; its grammar is checked by promtool where that is
installed, Prometheus' own judge of rules and expressions."""

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from support.commands import ran

SCRAPED = frozenset({"namespace", "job", "instance", "slipstream_model"})
"""Labels that Prometheus puts on what it reads: namespaces in Kubernetes, models by the chart."""

_TEXT_OR_RANGE = re.compile(r'"(?:\\.|[^"\\])*"|\[[^\]]*\]')
_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\b(?:\s*\(([^)]*)\))?")
_SERIES = re.compile(r"(?<![\w.:])([A-Za-z_:][\w:]*)(?![\w:])(?:\s*\{([^}]*)\})?(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass(frozen=True, slots=True)
class Selector:
    """One series name in an expression, and the labels by which it is chosen."""

    name: str
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Spoken:
    """Return the series of an expression, and labels it groups or matches by."""

    selectors: tuple[Selector, ...]
    grouping: frozenset[str]


def spoken(expression: str) -> Spoken:
    """Take an expression apart: what is neither a text, a list nor a function is a series."""
    bare = _TEXT_OR_RANGE.sub("", expression)
    grouping = " ".join(_LIST.findall(bare))
    found = [at for at in _SERIES.findall(_LIST.sub("", bare)) if at[0] not in _WORDS]
    selectors = [Selector(name, frozenset(re.findall(r"\w+", labels))) for name, labels in found]
    return Spoken(tuple(selectors), frozenset(re.findall(r"\w+", grouping)))


def known_labels(expression: str, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The labels that an expression can use; fails where it speaks of another series or label."""
    said = spoken(expression)
    assert said.selectors, expression
    for at in said.selectors:
        assert at.name in series, f"no service exports {at.name}"
        assert at.labels <= series[at.name] | SCRAPED, at
    found = SCRAPED.union(*(series[at.name] for at in said.selectors))
    assert said.grouping <= found, expression
    return found


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Run it, with the text on its standard input; skip the test where there is none.
    What it does not take fails, with all that it says."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    done = ran(tool, *arguments, input=text, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def check_expressions(folder: Path, expressions: Iterable[str]) -> None:
    """Fail for expressions that Prometheus does not understand; there must be some."""
    rules = [{"record": f"test:{number}", "expr": at} for number, at in enumerate(expressions)]
    assert rules
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": rules}]}))
    promtool("check", "rules", file)
