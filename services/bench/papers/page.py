"""Writes what was measured into a page, between its markers: figures come from files alone.

Pure but for reading and writing the files it is given.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.papers.catalogue import EXPERIMENTS
from slipstream.bench.papers.experiment import PLAIN_ARM, Experiment, Table
from slipstream.bench.papers.judging import verdict_of
from slipstream.bench.papers.measured import Measured
from slipstream.bench.papers.page_tables import (
    category_table,
    extra_tables,
    speed_table,
    verdict_table,
)
from slipstream.core.errors import InvalidRequest

_SECTION = re.compile(r"(<!-- experiment ([a-z0-9-]+) -->\n).*?(<!-- end of experiment -->)", re.S)
_SUMMARY = re.compile(r"(<!-- verdicts -->\n).*?(<!-- end of verdicts -->)", re.S)


@dataclass(frozen=True, slots=True)
class Found:
    """What one file holds of one experiment."""

    environment: Mapping[str, Any]
    measured: Measured


def read_results(paths: Iterable[Path]) -> dict[str, Found]:
    """By experiment; a later file takes the place of an earlier one. Raises `InvalidRequest`."""
    found: dict[str, Found] = {}
    for path in paths:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            for name, of in values["experiments"].items():
                measured = Measured(of["speed"], of["more"], values["categories"])
                found[name] = Found(values["environment"], measured)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{path} holds no results of bench papers ({error})") from None
    return found


def rendered(page: str, found: Mapping[str, Found]) -> str:
    """The page with all sections written anew whose experiments were measured.

    Raises `InvalidRequest` for a measured experiment that has no section.
    """
    places = {at[2] for at in _SECTION.finditer(page)}
    for name in found:
        if name not in EXPERIMENTS or name not in places:
            raise InvalidRequest(f"the page has no section for experiment {name!r}")

    def section(at: re.Match[str]) -> str:
        name = at[2]
        return f"{at[1]}{section_text(name, found[name])}{at[3]}" if name in found else at[0]

    summary = "\n".join(_table(_summary(found))) + "\n"
    page = _SECTION.sub(section, page)
    return _SUMMARY.sub(lambda at: at[1] + summary + at[2], page)


def section_text(name: str, found: Found) -> str:
    """Published tables, command, measured tables, verdicts."""
    experiment, measured = EXPERIMENTS[name], found.measured
    lines = [f"Published in {experiment.paper}.", ""]
    for table in experiment.published:
        lines += _titled(table)
    lines += ["Measured here:", "", "```", found.environment["command"], "```", ""]
    lines += [_facts(experiment, found.environment), ""]
    for table in measured_tables(experiment, measured):
        lines += _titled(table)
    lines += _titled(verdict_table(verdicts(experiment, measured)))
    return "\n".join(lines)


def measured_tables(experiment: Experiment, measured: Measured) -> list[Table]:
    tables = []
    for temperature in dict.fromkeys(at.temperature for at in experiment.settings):
        labels = [arm.label for arm in experiment.arms(temperature)]
        ran = [name for name in labels if name in measured.speed[f"{temperature:g}"]]
        shown = [PLAIN_ARM, *ran]
        tables.append(speed_table(measured, temperature, shown, experiment.columns))
        if experiment.by_category:
            tables.append(category_table(measured, temperature, ran))
    return [*tables, *extra_tables(experiment.experiment_id, measured.more)]


def verdicts(experiment: Experiment, measured: Measured) -> list[tuple[str, str, str, str]]:
    found = []
    for claim in experiment.claims:
        verdict = verdict_of(claim.judge, measured)
        found.append((claim.sentence, claim.source, verdict.outcome.value, verdict.why))
    return found


def _summary(found: Mapping[str, Found]) -> Table:
    rows = [
        (EXPERIMENTS[name].title, sentence, outcome)
        for name in EXPERIMENTS
        if name in found
        for sentence, _, outcome, _ in verdicts(EXPERIMENTS[name], found[name].measured)
    ]
    return Table("", ("experiment", "claim", "verdict"), tuple(rows))


def _facts(experiment: Experiment, of: Mapping[str, Any]) -> str:
    code = (of["git_commit"] or of["slipstream"])[:12]
    asked = f"{of['num_prompts']} prompts of {of['prompts']}, {of['max_new_tokens']} tokens each; "
    return (
        f"{asked if experiment.settings else ''}target {of['target']}, {of['dtype']},"
        f" {of['threads']} threads of {of['processor']}"
        f" ({of['num_processors']} processors), {of['device']}; code {code}."
    )


def _titled(table: Table) -> list[str]:
    return [f"**{table.title}**", "", *_table(table), ""]


def _table(table: Table) -> list[str]:
    cells: Callable[[Sequence[str]], str] = lambda row: f"| {' | '.join(row)} |"  # noqa: E731
    rule = cells(["---"] * len(table.heads))
    return [cells(table.heads), rule, *(cells(row) for row in table.rows)]
