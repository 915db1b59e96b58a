"""Figures that benchmarks share, of speed, drafting and token identity, and tables of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from slipstream.bench.harness import Sample
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.sequence import common_prefix

Figures = Mapping[str, Any]
ByName = Mapping[str, Figures]
Cell = Callable[[Figures], str]


def sample_figures(samples: Sequence[Sample], base: Sequence[Sample]) -> dict[str, Any]:
    """Return speed, which callers see, and drafting of some answers; ratios are over `base`."""
    (rate, decode_rate), (base_rate, base_decode_rate) = map(_rates, (samples, base))
    return {
        "tokens_per_s": rate,
        "ratio": quotient(rate, base_rate),
        "decode_tokens_per_s": decode_rate,
        "ratio_decode": quotient(decode_rate, base_decode_rate),
        "tokens": sum(len(sample.result.token_ids) for sample in samples),
        **drafting_figures([sample.result.stats.speculation for sample in samples]),
    }


def drafting_figures(stats: Sequence[SpeculationStats]) -> dict[str, Any]:
    """Return rounds, drafted tokens and acceptance of some answers; of none, no acceptance."""
    steps = sum(part.num_spec_steps for part in stats)
    plain = sum(part.num_plain_steps for part in stats)
    drafted = sum(part.num_draft_tokens for part in stats)
    accepted = sum(part.num_accepted_draft_tokens for part in stats)
    return {
        "rounds": steps + plain,
        "plain_rounds": plain,
        "drafted_tokens": drafted,
        "mean_acceptance_length": 1 + (quotient(accepted, steps) or 0.0) if stats else None,
        "draft_acceptance_rate": quotient(accepted, drafted) or 0.0,
        "fallbacks": dict(sum((Counter(part.fallbacks) for part in stats), Counter[str]())),
    }


def _rates(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Return tokens per second, and those after the first, which is prefill's, per second of
    decoding."""
    counts = [len(sample.result.token_ids) for sample in samples]
    decode_s = sum(sample.result.stats.timings.decode_s for sample in samples)
    rate = quotient(sum(counts), sum(sample.wall_s for sample in samples))
    return rate, quotient(sum(max(count - 1, 0) for count in counts), decode_s)


def paired(subject: Sequence[float], base: Sequence[float]) -> dict[str, float] | None:
    """Return median, lowest and highest of subject over base, repeat by repeat; None where all of
    the base are 0."""
    found = [a / b for a, b in zip(subject, base, strict=True) if b]
    return {"median": median(found), "low": min(found), "high": max(found)} if found else None


def quotient(value: float | None, by: float | None) -> float | None:
    """Return value / by; None where either is missing or `by` is 0."""
    return value / by if value is not None and by else None


def differences(
    outputs: Iterable[tuple[int | str, Sequence[Any]]], expected: Mapping[int | str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the questions whose outputs are not as expected, and the earliest position of each."""
    found: dict[int | str, int] = {}
    for key, tokens in outputs:
        same = common_prefix(tokens, expected[key])
        if same < max(len(tokens), len(expected[key])):
            found[key] = min(same, found.get(key, same))
    return [{"question_id": name, "position": position} for name, position in found.items()]


def sample_differences(
    samples: Sequence[Sample], reference: Sequence[Sample]
) -> list[dict[str, Any]]:
    """Return the questions whose tokens are not the first ones of the reference, and where."""
    outputs, expected = (
        [(sample.question.question_id, sample.result.token_ids) for sample in of]
        for of in (samples, reversed(reference))
    )
    return differences(outputs, dict(expected))


def table(first: str, *others: str, title: str | None = None) -> Table:
    """Return an empty table: names on the left, numbers on the right."""
    empty = Table(title=title, box=None, pad_edge=False, header_style="bold")
    empty.add_column(first, no_wrap=True)
    for name in others:
        empty.add_column(name, justify="right", overflow="fold")
    return empty


def table_of(
    labels: Sequence[str],
    columns: Mapping[str, Cell],
    rows: Iterable[tuple[Sequence[str], Figures]],
) -> Table:
    """Return a table of rows, each with its labels and a cell for each column."""
    shown = table(*labels, *columns)
    for names, of in rows:
        shown.add_row(*names, *(cell(of) for cell in columns.values()))
    return shown


def number(key: str, digits: int, unit: str = "") -> Cell:
    """Return a cell that shows one of the figures."""
    return lambda of: fixed(of[key], digits, unit)


def fixed(value: float | None, digits: int, unit: str = "") -> str:
    """Return a number, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def position_text(of: Iterable[Mapping[str, int | str]]) -> str:
    """Return where outputs differ, as a file holds it, in words."""
    return "; ".join(
        f"{difference['question_id']} at token {difference['position']}" for difference in of
    )
