"""Runs cases in child processes, replaces those that end, and makes the cases of faults small."""

import base64
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.case import CORPUS, Case, file_name, save
from fuzz.files.child import FAULT, LOADED, REFUSED
from fuzz.files.kinds import MODULES, kinds_of
from fuzz.minimise import minimised
from support.commands import IMPORT_PATH, ROOT

FILE = "file"
"""The role of cases that are files."""
CRASH, SLOW = "crash", "slow"
KEPT = CORPUS / "files"
MEMORY = 1 << 30
"""Bytes that a child may have beyond what it had after an intact file."""
CPU_S = 10.0
_WALL_S = 300.0
"""Longest wait for a reply: a child that waits for something takes no CPU."""
_MAX_KEPT_BYTES = 12_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a child process."""

    memory: int = MEMORY
    cpu_s: float = CPU_S
    wall_s: float = _WALL_S


class Child:
    """A process that loads cases, replaced when it ends."""

    def __init__(self, modules: Sequence[str], limits: Limits) -> None:
        self._modules, self._limits = modules, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def outcomes(self, kind: str, **asked: Any) -> Iterator[tuple[int, str, str]]:
        """Yield the number, the outcome and the fault of each case of a request."""
        first, end = asked.get("first", 0), asked.get("end", 1)
        while first < end:
            self._send({"kind": kind, **asked, "first": first})
            for number in range(first, end):
                reply = self._reply()
                yield (number, *reply)
                first = number + 1
                if reply[0] in (CRASH, SLOW):
                    break

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _send(self, asked: dict[str, Any]) -> None:
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()

    def _reply(self) -> tuple[str, str]:
        process = self._process
        assert process is not None and process.stdout is not None
        while b"\n" not in self._read:
            if not select.select([process.stdout], [], [], self._limits.wall_s)[0]:
                self.close()
                return SLOW, "it waits"
            if not (part := os.read(process.stdout.fileno(), 1 << 16)):
                break
            self._read += part
        line, has_line, self._read = self._read.partition(b"\n")
        if has_line:
            _, outcome, fault = json.loads(line)
            return outcome, fault
        code = process.wait()
        self.close()
        if -code == signal.SIGXCPU:
            return SLOW, f"more than {self._limits.cpu_s:g} s of CPU"
        return CRASH, f"exit code {code}"

    def _started(self) -> subprocess.Popen[bytes]:
        self._read = b""
        path = os.pathsep.join((IMPORT_PATH, str(ROOT / "tests")))
        words = [",".join(self._modules), str(self._limits.memory), str(self._limits.cpu_s)]
        return subprocess.Popen(
            [sys.executable, "-m", "fuzz.files.child", *words],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


@dataclass(slots=True)
class Finding:
    """A fault of a kind of files: its first case, which kind, seed and number make again."""

    kind: str
    fault: str
    seed: int
    number: int
    case: Case
    num_cases: int = 1

    def values(self) -> dict[str, Any]:
        """Return the finding as JSON takes it."""
        names = ("kind", "fault", "seed", "number", "num_cases")
        size = len(self.case.parts[0])
        return {name: getattr(self, name) for name in names} | {"minimised_bytes": size}


@dataclass(slots=True)
class Tally:
    """Outcomes by kind, and what was found."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "cases": sum(sum(counts.values()) for counts in self.outcomes.values()),
            "kinds": {name: dict(counts) for name, counts in self.outcomes.items()},
            "findings": [each.values() for each in self.findings.values()],
        }

    def lines(self) -> list[str]:
        """Return the table."""
        names = (LOADED, REFUSED, FAULT, CRASH, SLOW)
        table = [f"{'kind':24}" + "".join(f"{name:>10}" for name in names)]
        for kind, counts in self.outcomes.items():
            table.append(f"{kind:24}" + "".join(f"{counts[name]:10,}" for name in names))
        for each in self.findings.values():
            case = f"{each.num_cases} cases, first seed {each.seed} number {each.number}"
            table.append(f"finding: {each.kind}: {each.fault} ({case})")
        return table


class Runner:
    """Runs cases of kinds. Findings are kept in `folder`, where there is one."""

    def __init__(
        self,
        modules: Sequence[str] = MODULES,
        limits: Limits | None = None,
        folder: Path | None = None,
    ) -> None:
        self.kinds = kinds_of(modules)
        self.tally = Tally()
        self._child = Child(modules, limits or Limits())
        self._folder = folder

    def close(self) -> None:
        """End the child process."""
        self._child.close()

    async def run(self, kind: str, seed: int, first: int, end: int) -> None:
        """Load the cases of a kind with the numbers from `first` to before `end`."""
        for number, outcome, fault in self._child.outcomes(kind, seed=seed, first=first, end=end):
            self.tally.outcomes.setdefault(kind, Counter())[outcome] += 1
            if outcome in (LOADED, REFUSED):
                continue
            if found := self.tally.findings.get((kind, fault)):
                found.num_cases += 1
            else:
                data, _ = self.kinds[kind].data(seed, number)
                case = Case(FILE, kind, outcome, self.kinds[kind].file, (data,))
                self.tally.findings[kind, fault] = Finding(kind, fault, seed, number, case)

    async def minimise(self) -> None:
        """Make the findings smaller, and keep those that are small."""
        for (kind, fault), found in self.tally.findings.items():

            async def shows_it(case: Case, wanted: str = fault) -> bool:
                return self.load(case)[1] == wanted

            if found.case.kind != SLOW and await shows_it(found.case):
                found.case = await minimised(found.case, shows_it)
            if self._folder is not None and len(found.case.parts[0]) <= _MAX_KEPT_BYTES:
                name = file_name(f"{kind} {fault}")
                save(self._folder / kind.replace(" ", "-") / name, [found.case], symptom=fault)

    def load(self, case: Case) -> tuple[str, str]:
        """Load one case again; its outcome and its fault."""
        data = base64.b64encode(case.parts[0]).decode()
        ((_, outcome, fault),) = self._child.outcomes(case.to, data=data)
        return outcome, fault
