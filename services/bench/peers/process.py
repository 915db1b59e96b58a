"""Processes of engines under test: started, sent prompts, measured, ended."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.peers.engine import Answer, ProcessFacts, Settings, answer_of, facts_of
from slipstream.bench.services import processor_s
from slipstream.core.errors import ServiceError
from slipstream.parent_watch import watched_command

_PROGRAM = "from slipstream.bench.peers.engine import main; main()"


@dataclass(frozen=True, slots=True)
class Reply:
    """Answers to prompts that came together, and the seconds that they took."""

    wall_s: float
    answers: tuple[Answer, ...]


class EngineProcess:
    """Process of one engine under test."""

    def __init__(self, settings: Settings) -> None:
        """Start it and wait until it is ready. Raises `ServiceError` with its own message."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with us
        self._process = subprocess.Popen(
            watched_command([sys.executable, "-c", _PROGRAM]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        try:
            self.facts: ProcessFacts = facts_of(self._exchange(dict(settings))["ready"])
        except BaseException:
            self.close()
            raise

    def load(self, config: str) -> None:
        """Prepare a configuration. Raises `ServiceError` with the reason why it can't answer."""
        self._exchange({"load": config})

    def ask(self, config: str, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Reply:
        """Send prompts together. Raises `ServiceError` where one fails."""
        asked = {"config": config, "prompts": [list(ids) for ids in prompts]}
        reply = self._exchange(asked | {"max_new_tokens": max_new_tokens})
        return Reply(reply["wall_s"], tuple(map(answer_of, reply["answers"])))

    def cpu_s(self) -> float:
        """Return the processor seconds of all its processes so far."""
        return sum(map(processor_s, self.facts.pids))

    def peak_bytes(self) -> int:
        """Return the peaks of resident memory of its processes, added up; 0 where unknown."""
        return sum(map(_peak_bytes, self.facts.pids))

    def close(self) -> None:
        """End it at once, with the processes that it has started: they end with their parent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with suppress(OSError):  # what could not be written is not wanted any more
                    pipe.close()

    def _exchange(self, values: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise ServiceError(f"its process ended {self._how()}: {self._last_line()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ServiceError(reply["error"])
        return reply

    def _how(self) -> str:
        code = self._process.wait()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else "it wrote nothing"


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    return 0
