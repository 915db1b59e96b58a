"""Series and labels of a PromQL expression. Its grammar is checked by promtool."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
