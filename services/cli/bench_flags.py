"""The options of `slipstream bench`, in groups, and what they mean. Loads no torch."""

from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from slipstream.bench.methods import GRAMMAR, Method, parse_methods, with_references
from slipstream.bench.questions import Question, read_questions, select
from slipstream.core.errors import InvalidRequest
from slipstream.core.types import SamplingParams

_METHODS = "plain,ngram,glide,glide+cape+svip,best"


class Numerics(StrEnum):
    """Numerics of drafting methods."""

    INVARIANT = "invariant"
    FAST = "fast"


class Turns(StrEnum):
    """Part of a conversation to run."""

    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """Models, and where they run."""

    target: Annotated[str, Option(help="Target: an alias, a path or OWNER/NAME of the hub.")] = (
        "smollm2-135m"
    )
    draft: Annotated[
        str, Option(help="Draft of glide and best: glide, or a directory of GliDe weights.")
    ] = "glide"
    dtype: Annotated[str, Option(help="auto, bfloat16, float16 or float32.")] = "auto"
    threads: Annotated[int | None, Option(help="CPU threads; default: torch's choice.")] = None
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu"
    profile: Annotated[
        Path | None,
        Option(help="Profile file of `slipstream calibrate`, in place of the draft's own."),
    ] = None

    def check(self) -> None:
        """Raise `InvalidRequest` for a draft that is no GliDe draft."""
        if self.draft != "glide" and not Path(self.draft).expanduser().is_dir():
            raise InvalidRequest(
                f"the draft is {self.draft!r}, but must be glide or a directory of GliDe weights;"
                " other drafts are methods"
            )


PromptsOption = Annotated[
    Path | None,
    Option(help="JSON lines with question_id, category, turns; default: a small set."),
]
LimitOption = Annotated[
    int | None, Option(help="At most so many prompts, evenly from all categories.")
]


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """Prompts."""

    prompts: PromptsOption = None
    limit: LimitOption = None
    categories: Annotated[str, Option(help="Only these, with commas between.")] = ""
    turns: Annotated[
        Turns, Option(help="first: one request a prompt; all: the whole conversation.")
    ] = Turns.FIRST

    def path(self) -> Path:
        """The file, by default the one in the package."""
        if self.prompts is not None:
            return self.prompts
        return Path(str(resources.files("slipstream") / "data" / "prompts.jsonl"))

    def questions(self) -> tuple[Question, ...]:
        """Raise `InvalidRequest` for a file, line or choice that makes no sense."""
        names = [name.strip() for name in self.categories.split(",") if name.strip()]
        return select(read_questions(self.path()), categories=names, limit=self.limit)


@dataclass(frozen=True, slots=True)
class RunFlags:
    """Methods, and how they are run."""

    methods: Annotated[str, Option(help=f"With commas between; a method is {GRAMMAR}.")] = _METHODS
    numerics: Annotated[
        Numerics, Option(help="Of drafting methods; plain is always the fastest.")
    ] = Numerics.INVARIANT
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int, Option(help="Of every method, for temperatures above 0.")] = 0
    warmup: Annotated[int, Option(help="Short unmeasured replies of each method first.")] = 1
    repeats: Annotated[int, Option(help="Runs over all prompts.")] = 1

    def sampling(self) -> SamplingParams:
        """Raise `InvalidRequest` for a value out of range."""
        return SamplingParams(temperature=self.temperature, seed=self.seed)

    def parsed(self) -> tuple[Method, ...]:
        """The methods and those that they are compared with."""
        numerics: Literal["invariant", "fast"] = self.numerics.value
        return with_references(parse_methods(self.methods, numerics=numerics))


@dataclass(frozen=True, slots=True)
class CostFlags:
    """Timings of costs."""

    rows: Annotated[str, Option(help="Rows of a verification, ascending from 1.")] = "1,2,4,8,16,32"
    context: Annotated[int, Option(help="Tokens before the rows.")] = 300
    rounds: Annotated[int, Option(help="Timings of each forward.")] = 20

    def row_counts(self) -> tuple[int, ...]:
        """Raise `InvalidRequest` for what is no list of numbers."""
        try:
            return tuple(int(part) for part in self.rows.split(","))
        except ValueError:
            raise InvalidRequest(f"rows are {self.rows!r}, but must be as 1,4,16") from None


@dataclass(frozen=True, slots=True)
class OutputFlags:
    """File of the figures."""

    json: Annotated[Path | None, Option(help="Also write everything to this file.")] = None
