"""images/Dockerfile as stages of instructions, and its RUN steps on this machine.
Reads as much of the language as that file uses: no heredocs, no escapes but a line's end."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import ran
from support.deployment import lock_files

ROOT = Path(__file__).resolve().parent.parent.parent.parent
FILE = ROOT / "images" / "Dockerfile"
ROLES = ("router", "draft", "target")
_GLOBAL = {"DEVICE": "cpu"}
_PLACES = re.compile(r"(?<![\w./-])/(app|own|wheel|tools|build)\b")
_PYTHON = re.compile(r"(?<![\w./-])python3(?= )")
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


class Workshop:
    """A directory in the place of a builder's root, where stages are carried out.
    Only what they do in /app, /own, /wheel, /tools and /build, and with packages from `wheels`:
    the bases, and what is done as root to them, are not ours to run."""

    def __init__(
        self, root: Path, wheels: Path, edited: Callable[[str], str] | None = None
    ) -> None:
        """Locks are copied as `edited` returns them; without it, with the hashes of `wheels`, which
        were packed anew and so have hashes of their own."""
        self.root = root
        self._wheels = wheels
        self._edited = edited or (lambda text: lock_files.rehashed(text, wheels.glob("*.whl")))
        (root / "build").mkdir(parents=True)

    def carry_out(self, stage: Stage) -> None:
        variables: dict[str, str] = {}
        for each in stage.instructions:
            if each.keyword == "COPY":
                self._copy(each)
            elif each.keyword == "ARG":
                name, _, value = each.value.partition("=")
                variables[name] = value or _GLOBAL[name]
            elif each.keyword == "RUN":
                self.run(each.value, variables)

    def run(self, command: str, variables: dict[str, str]) -> str:
        """Run a RUN step; what it writes to standard output."""
        here = self.here(_PYTHON.sub(shlex.quote(sys.executable), command))
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self._wheels)}
        env = {**_clean(), **offline, "PIP_CONFIG_FILE": os.devnull, **variables}
        # The umask is a builder's.
        done = ran("sh", "-euc", here, cwd=self.root / "build", env=env, umask=0o022)
        assert done.returncode == 0, f"{here}\n{done.stdout}{done.stderr}"
        return done.stdout

    def here(self, text: str) -> str:
        """A text with the places of the image as those of this directory."""
        return _PLACES.sub(lambda match: f"{self.root}/{match[1]}", text)

    def _copy(self, each: Instruction) -> None:
        *sources, destination = each.value.split()
        if "from" in each.flags:  # stages share this root: only a change of place is one
            source, into = Path(self.here(sources[0])), Path(self.here(destination))
            if source != into:
                shutil.copytree(source, into, dirs_exist_ok=True)
            return
        folder = Path(self.here(destination.rstrip("/")))
        folder = folder if folder.is_absolute() else self.root / "build" / folder
        for name in sources:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(ROOT / name, folder, ignore=ignored)
            elif name.endswith(".lock"):
                text = (ROOT / name).read_text()
                (folder / Path(name).name).write_text(self._edited(text))
            else:
                shutil.copy(ROOT / name, folder)


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name[:3] not in {"PYT", "PIP"}}


def _instruction(keyword: str, rest: str) -> Instruction:
    flags: dict[str, str] = {}
    rest = rest.strip()
    while match := _FLAG.match(rest):
        name, _, value = match.group().strip().removeprefix("--").partition("=")
        flags[name] = f"{flags[name]} {value}" if name in flags else value
        rest = rest[match.end() :]
    return Instruction(keyword, flags, " ".join(rest.split()))
