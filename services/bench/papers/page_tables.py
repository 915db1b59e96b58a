"""What was measured as tables of text. Pure; knows neither files nor Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.bench.papers.bias_report import law_rows, text_rows
from slipstream.bench.papers.experiment import PLAIN_ARM, Table
from slipstream.bench.papers.long_report import long_rows, marks
from slipstream.bench.papers.mask_report import mask_rows
from slipstream.bench.papers.measured import Measured
from slipstream.bench.serve.distributions import Interval

_MT_BENCH = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
_RATIO = "ratio"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _number(value: float) -> str:
    return f"{value:.2f}"


COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "alpha": ("acceptance of a tested token", _percent),
    "acceptance": ("accepted of the drafted path", _percent),
    "cost": ("c", _percent),
    "expected": ("E", _number),
    "tokens_per_round": ("tokens per round", _number),
    "length": ("drafted path", _number),
    "nodes": ("nodes", lambda value: f"{value:.1f}"),
    "draft_ms": ("drafting, ms per round", _number),
    "tokens_per_s": ("tokens/s", lambda value: f"{value:.1f}"),
}
_OF_PLAIN = frozenset({"tokens_per_s"})
"""What plain decoding has, too."""


def speed_table(
    measured: Measured, temperature: float, labels: Sequence[str], columns: Sequence[str]
) -> Table:
    """A row for each arm; `ratio` is the median, question by question, with its interval."""
    heads = [COLUMNS[name][0] if name != _RATIO else "speed over plain" for name in columns]
    rows = tuple(
        (label, *(_cell(measured, temperature, label, name) for name in columns))
        for label in labels
    )
    return Table(_at(temperature), ("", *heads), rows)


def category_table(measured: Measured, temperature: float, labels: Sequence[str]) -> Table:
    """Speed over plain decoding by task of Spec-Bench, MT-Bench's eight kinds as one."""
    grouped = replace(measured, categories=[_group(name) for name in measured.categories])
    rows = []
    for group in dict.fromkeys(grouped.categories):
        found = [grouped.ratio(temperature, of, PLAIN_ARM, category=group) for of in labels]
        rows.append((group, *(_median(of) for of in found)))
    title = f"{_at(temperature)}, speed over plain by task (medians)"
    return Table(title, ("task", *labels), tuple(rows))


def verdict_table(verdicts: Sequence[tuple[str, str, str, str]]) -> Table:
    """A row for each claim."""
    rows = tuple((what, source, f"**{verdict}**", why) for what, source, verdict, why in verdicts)
    return Table("Verdicts", ("claim", "where", "verdict", "why"), rows)


def extra_tables(name: str, more: Mapping[str, Any]) -> list[Table]:
    """What an experiment measures beside the speed of its arms."""
    tables = {"long": _long, "target-init": _bias, "mask": _mask}
    return tables[name](more) if name in tables and more else []


def _long(more: Mapping[str, Any]) -> list[Table]:
    return [
        Table(
            f"{_at(float(at))}, speed over plain by tokens written",
            ("", *(f"{mark:,}" for mark in marks(of))),
            long_rows(of),
        )
        for at, of in more.items()
    ]


def _bias(more: Mapping[str, Any]) -> list[Table]:
    of = more["greedy"]
    differing = Table(
        "Greedy outputs that are others than plain decoding's",
        ("outputs", "others", "tokens", "others"),
        (tuple(str(of[n]) for n in ("outputs", "other_outputs", "tokens", "other_tokens")),),
    )
    text = Table(
        "Mean log-probability of a token under the target, in nats",
        ("temperature", "plain", "target-initialised", "difference"),
        text_rows(more["log_probs"]),
    )
    seeds = more["laws"][0]["num_seeds"] if more["laws"] else 0
    laws = Table(
        f"Total variation between {seeds} first tokens, at temperature 1, and the target's law",
        (
            "question",
            "entropy, nats",
            "chance, 95%",
            "plain",
            "target-initialised",
            "three likeliest: law, plain, target-initialised",
        ),
        law_rows(more["laws"]),
    )
    return [differing, text, laws]


def _mask(more: Mapping[str, Any]) -> list[Table]:
    heads = ("tree", "nodes", "levels", "sliced, us", "first seen, us", "rebuilt, us")
    shares = ("verification, ms", "sliced", "rebuilt")
    return [Table("Masks of a round, level by level", heads + shares, mask_rows(more["trees"]))]


def _cell(measured: Measured, temperature: float, label: str, column: str) -> str:
    if label == PLAIN_ARM and column not in _OF_PLAIN:
        return "1" if column == _RATIO else ""
    if column == _RATIO:
        found = measured.ratio(temperature, label, PLAIN_ARM)
        return _median(found) + (f" ({found.low:.2f} to {found.high:.2f})" if found else "")
    value = measured.arm(temperature, label)[column]
    return "-" if value is None else COLUMNS[column][1](value)


def _median(found: Interval | None) -> str:
    return "-" if found is None else f"{found.median:.2f}"


def _group(category: str) -> str:
    return "MT-Bench" if category in _MT_BENCH else category.replace("_", " ")


def _at(temperature: float) -> str:
    return f"Temperature {temperature:g}" if temperature else "Greedy"
