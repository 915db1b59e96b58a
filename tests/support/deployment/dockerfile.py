"""images/Dockerfile as stages of instructions.
Reads as much of the language as that file uses: no heredocs, no escapes but a line's end."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.commands import ROOT

FILE = ROOT / "images" / "Dockerfile"
ROLES = ("router", "draft", "target")
_FLAG = re.compile(r"--[a-z]+=\S+\s+")


@dataclass(frozen=True)
class Instruction:
    """A line: its keyword, flags such as --from=wheel, and the rest."""

    keyword: str
    flags: dict[str, str]
    value: str


@dataclass
class Stage:
    """A stage, the lines between two FROM lines; `base` is a stage's name, or an image."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, keyword: str) -> list[Instruction]:
        return [each for each in self.instructions if each.keyword == keyword]


def lines(text: str) -> list[str]:
    kept = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(kept).replace("\\\n", " ").splitlines()


def parse(text: str) -> tuple[list[str], dict[str, Stage]]:
    """Arguments that stand before all stages, and the stages by name."""
    arguments: list[str] = []
    stages: dict[str, Stage] = {}
    for line in lines(text):
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif not stages:
            arguments.append(rest)
        else:
            stage.instructions.append(_instruction(keyword, rest))
    return arguments, stages


def stages() -> dict[str, Stage]:
    """Return the stages of the project's file, with the device `cpu`."""
    return parse(
        FILE.read_text()
        .replace("FROM build-${DEVICE}", "FROM build-cpu")
        .replace("FROM base-${DEVICE}", "FROM base-cpu")
    )[1]


def lineage(known: dict[str, Stage], name: str) -> Iterator[Stage]:
    while name in known:
        yield known[name]
        name = known[name].base


def last(known: dict[str, Stage], name: str, keyword: str) -> str:
    """The state in the end of a stage."""
    found = [each for stage in lineage(known, name) for each in stage.all(keyword)[::-1]]
    return found[0].value


def environment(known: dict[str, Stage], name: str) -> dict[str, str]:
    """Return the variables of the ENV lines of a stage and those under it."""
    said = [each.value for stage in lineage(known, name) for each in stage.all("ENV")]
    return dict(pair.split("=", 1) for value in said for pair in shlex.split(value))


def _instruction(keyword: str, rest: str) -> Instruction:
    flags: dict[str, str] = {}
    rest = rest.strip()
    while match := _FLAG.match(rest):
        name, _, value = match.group().strip().removeprefix("--").partition("=")
        flags[name] = f"{flags[name]} {value}" if name in flags else value
        rest = rest[match.end() :]
    return Instruction(keyword, flags, " ".join(rest.split()))
