"""What a run of a fuzzer came to: a table and an exit code; and its command line."""

import argparse
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.case import Case, file_name, save

_MAX_KEPT_BYTES = 12_000


@dataclass(slots=True)
class Finding:
    """A fault, and the case that shows it; several where none does alone."""

    what: str
    first: str
    """Where it came first, which the seed makes again."""
    cases: list[Case]
    log: str = ""
    count: int = 1
    """Batches or cases that showed it."""

    def keep(self, folder: Path) -> None:
        """Write the case to a folder, if it is one and small: else the seed says what it was."""
        num_bytes = sum(map(len, self.cases[0].parts))
        if len(self.cases) == 1 and num_bytes <= _MAX_KEPT_BYTES:
            save(folder / file_name(self.what), self.cases, symptom=self.what)


@dataclass(slots=True)
class Tally:
    """What was sent or loaded, and what came of it; by role, or by kind of file."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    forms: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How cases were made."""
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """What else there is to say of each."""

    @property
    def num_cases(self) -> int:
        return sum(counts.total() for counts in self.outcomes.values())

    def lines(self) -> list[str]:
        table = []
        for name, counts in self.outcomes.items():
            table.append(f"{name:24}{counts.total():10,}  {_listed(counts)}")
            more = [_listed(self.forms[name]) if name in self.forms else "", self.notes.get(name)]
            table += [f"{'':36}{line}" for line in more if line]
        for each in self.findings.values():
            table.append(f"finding: {each.what} ({each.count}, first {each.first})\n{each.log}")
        return table


def _listed(counts: Counter[str]) -> str:
    return " ".join(f"{name} {count:,}" for name, count in counts.most_common())


def parser(prog: str, doc: str | None, keep: Path, minutes: float) -> argparse.ArgumentParser:
    """Return the options that all fuzzers have."""
    made = argparse.ArgumentParser(prog, description=doc)
    made.add_argument("--minutes", type=float, default=minutes, help="longest time")
    made.add_argument("--seed", type=int, default=secrets.randbits(32))
    made.add_argument("--first", type=int, default=0, help="number of the first batch or case")
    made.add_argument("--keep", type=Path, default=keep, help="a folder for findings")
    return made


def conclude(seed: int, tally: Tally, about: dict[str, Any], faults: Sequence[str]) -> int:
    """Print the report; 1 where there are findings or other faults, else 0."""
    lines = [*tally.lines(), *faults, f"seed {seed}: {tally.num_cases:,} cases, {about}"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if faults or tally.findings else 0
