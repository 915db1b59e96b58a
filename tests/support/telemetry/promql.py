"""Series and labels of a PromQL expression. Its grammar is checked by promtool."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SCRAPED = frozenset({"namespace", "job", "instance"})
"""Labels that Prometheus itself puts on what it reads (the first one in Kubernetes)."""

_TOKEN = re.compile(
    r"""
    (?P<text>"(?:\\.|[^"\\])*")
    | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    | (?P<number>\d[\w.]*)
    | (?P<range>\[[^\]]*\])
    | (?P<sign>[{}(),]|[=!<>~+\-*/%^@.]+)
    | (?P<space>\s+)
    """,
    re.VERBOSE,
)
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_AFTER_OPERATORS = {"(", "by", "without"}


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
    """Take an expression apart. Raises `ValueError` where it is no PromQL at all."""
    tokens = list(_tokens(expression))
    selectors: list[Selector] = []
    grouping: set[str] = set()
    at = 0
    while at < len(tokens):
        kind, token = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if token in _LISTS:
            names, at = _names(tokens, at + 1) if following == "(" else ([], at + 1)
            grouping.update(names)
        elif kind != "name" or token in _WORDS or following in _AFTER_OPERATORS:
            at += 1
        else:
            names, at = _names(tokens, at + 1) if following == "{" else ([], at + 1)
            selectors.append(Selector(token, frozenset(names)))
    return Spoken(tuple(selectors), frozenset(grouping))


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


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"{expression[at:]!r} is no PromQL")
        at = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found.group()


def _names(tokens: list[tuple[str, str]], at: int) -> tuple[list[str], int]:
    """The names within the bracket that begins there, and where it has ended."""
    closing = {"(": ")", "{": "}"}[tokens[at][1]]
    names = []
    while tokens[at][1] != closing:
        at += 1
        if tokens[at][0] == "name":
            names.append(tokens[at][1])
    return names, at + 1
