"""Runs cases in child processes, and replaces those that end."""

import base64
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from fuzz.case import CORPUS, Case
from fuzz.files.child import LOADED, REFUSED
from fuzz.files.kinds import kinds_by_name
from fuzz.report import Finding, Tally
from support.commands import IMPORT_PATH, ROOT

FILE = "file"
"""The role of cases that are files."""
CRASH, SLOW = "crash", "slow"
KEPT = CORPUS / "files"
MEMORY = 1 << 30
"""Bytes that a child may have beyond what it had after an intact file."""
_CPU_S = 10.0
_WALL_S = 300.0
"""Longest wait for a reply: a child that waits for something takes no CPU."""


class Child:
    """A process that loads cases, replaced when it ends."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def load(
        self, kind: str, data: bytes = b"", *, is_intact: bool = False, path: Path | None = None
    ) -> tuple[str, str]:
        """Load a case, or what is at a path; its outcome, and its fault or refusal."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        given = None if path is None else str(path)
        line = json.dumps([kind, base64.b64encode(data).decode(), is_intact, given])
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        return self._reply(process)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _reply(self, process: "subprocess.Popen[bytes]") -> tuple[str, str]:
        assert process.stdout is not None
        while b"\n" not in self._read:
            if not select.select([process.stdout], [], [], _WALL_S)[0]:
                self.close()
                return SLOW, "it waits"
            if not (part := os.read(process.stdout.fileno(), 1 << 16)):
                break
            self._read += part
        line, has_line, self._read = self._read.partition(b"\n")
        if has_line:
            outcome, fault = json.loads(line)
            return outcome, fault
        code = process.wait()
        self.close()
        if -code == signal.SIGXCPU:
            return SLOW, f"more than {_CPU_S:g} s of CPU"
        return CRASH, f"exit code {code}"

    def _started(self) -> subprocess.Popen[bytes]:
        self._read = b""
        path = os.pathsep.join((IMPORT_PATH, str(ROOT / "tests")))
        words = [str(self._memory), str(_CPU_S)]
        return subprocess.Popen(
            [sys.executable, "-m", "fuzz.files.child", *words],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


class Runner:
    """Runs cases of kinds. Findings are kept in `folder`, where there is one."""

    def __init__(self, memory: int = MEMORY, folder: Path | None = None) -> None:
        self.kinds = kinds_by_name()
        self.tally = Tally()
        self._child = Child(memory)
        self._folder = folder

    def close(self) -> None:
        self._child.close()

    def run(self, kind: str, seed: int, first: int, end: int) -> None:
        """Load the cases of a kind with the numbers from `first` to before `end`."""
        for number in range(first, end):
            data, is_intact = self.kinds[kind].data(seed, number)
            outcome, fault = self._child.load(kind, data, is_intact=is_intact)
            self.tally.outcomes[kind][outcome] += 1
            if outcome in (LOADED, REFUSED):
                continue
            what = f"{kind}: {fault}"
            if known := self.tally.findings.get(what):
                known.count += 1
                continue
            case = Case(FILE, kind, outcome, self.kinds[kind].file, (data,))
            found = Finding(what, f"seed {seed} number {number}", [case])
            self.tally.findings[what] = found
            if self._folder is not None:
                found.keep(self._folder / kind.replace(" ", "-"))

    def load(self, case: Case) -> tuple[str, str]:
        """Load one case again; its outcome and its fault."""
        return self._child.load(case.to, case.parts[0])
