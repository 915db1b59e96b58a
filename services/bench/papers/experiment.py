"""What an experiment of a paper is: arms to run, the published figures, and claims to judge.

Values only; knows no model, clock or file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from slipstream.bench.papers.measured import Measured

PLAIN_ARM = "plain"


class Weights(StrEnum):
    """Which draft an arm runs with."""

    DRAFT = "draft"
    """That of all other benchmarks: the shipped one by default."""
    ALIKE = "alike"
    """A GliDe draft trained as the ablated ones were."""
    NO_CROSS = "no-cross"
    """A draft trained without cross-attention."""
    LAST_LAYER = "last-layer"
    """A draft that reads the target's last layer alone."""
    VANILLA = "vanilla"
    """An ordinary causal language model."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to decode: a method of `bench.methods` with some weights, under the paper's name."""

    label: str
    method: str
    weights: Weights = Weights.DRAFT


@dataclass(frozen=True, slots=True)
class Setting:
    """Arms that run in turn, question by question, at one temperature."""

    temperature: float
    arms: tuple[Arm, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table as text: a title, heads, and rows of as many cells."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"row {row} of {self.title!r} has not {len(self.heads)} cells")


class Outcome(StrEnum):
    """What became of a claim here."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and one sentence why."""

    outcome: Outcome
    why: str


Judge = Callable[[Measured], Verdict]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, where it says so, and how what was measured is held against it."""

    sentence: str
    source: str
    judge: Judge


@dataclass(frozen=True, slots=True)
class Experiment:
    """One comparison of the papers. `columns` are the figures of `page_tables` to show."""

    experiment_id: str
    title: str
    paper: str
    claims: tuple[Claim, ...]
    settings: tuple[Setting, ...] = ()
    columns: tuple[str, ...] = ()
    published: tuple[Table, ...] = ()
    by_category: bool = False

    def arms(self, temperature: float) -> tuple[Arm, ...]:
        """Those that it runs at a temperature, without plain decoding."""
        return tuple(
            arm for at in self.settings if at.temperature == temperature for arm in at.arms
        )
