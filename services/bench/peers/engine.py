"""Engine under test, and the process in which it runs and answers JSON lines.

Libraries, thread pools and memory of one engine are none of another's. The first line has the
engine's settings; then each line is answered with one, and a configuration that fails leaves the
others able to answer.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TextIO

from slipstream.bench.harness import processor_s
from slipstream.core.errors import ServiceError
from slipstream.core.timing import Clock
from slipstream.parent_watch import watched_command

_ENGINES = {
    "transformers": ("slipstream.bench.peers.engine_transformers", "TransformersEngine"),
    "llama.cpp": ("slipstream.bench.peers.engine_llama", "LlamaEngine"),
    "openai": ("slipstream.bench.peers.engine_endpoint", "EndpointEngine"),
    "embedded": ("slipstream.bench.peers.engine_slipstream", "EmbeddedEngine"),
    "embedded-batched": ("slipstream.bench.peers.engine_slipstream", "BatchedEngine"),
    "distributed": ("slipstream.bench.peers.engine_slipstream", "RoutedEngine"),
}
"""Module and class by system; each module loads only what it needs."""
Prompts = Sequence[Sequence[int]]
EngineSettings = Mapping[str, Any]
"""EngineSettings of an engine, as JSON values."""
_PROGRAM = "from slipstream.bench.peers.engine import main; main()"


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Answer to one prompt.

    `token_ids` is None where only text came back; `num_forwards` counts the target's, the prompt's
    own included, None where it can't be seen.
    """

    num_tokens: int
    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    num_forwards: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Processes of an engine, its versions, and what it was set to."""

    pids: tuple[int, ...]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]


class EngineUnderTest(Protocol):
    """System that answers, in one or several configurations."""

    def load(self, config: str) -> None:
        """Prepare a configuration; raise what keeps it from answering."""

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """Return greedy answers to prompts that came together, in their order."""
        ...

    def facts(self) -> ProcessFacts:
        """See `ProcessFacts`."""
        ...

    def close(self) -> None:
        """End what was started."""


def facts_of(values: Mapping[str, Any]) -> ProcessFacts:
    """Read facts from JSON values."""
    return ProcessFacts(tuple(values["pids"]), values["versions"], values["settings"])


def answer_of(values: Mapping[str, Any]) -> EngineAnswer:
    """Read an answer from JSON values."""
    token_ids = values["token_ids"]
    return EngineAnswer(**{**values, "token_ids": None if token_ids is None else tuple(token_ids)})


def main(clock: Clock = time.perf_counter) -> None:
    """Load what the first line names, then answer every other line."""
    answers = _own_output()
    engine = _tried(answers, lambda: _loaded(json.loads(sys.stdin.readline())))
    if engine is None:
        return
    try:
        _write(answers, {"ready": asdict(engine.facts())})
        for line in sys.stdin:
            reply = _tried(answers, partial(_answered, engine, json.loads(line), clock))
            if reply is not None:
                _write(answers, reply)
    finally:
        engine.close()


def _loaded(settings: EngineSettings) -> EngineUnderTest:
    module, name = _ENGINES[settings["system"]]
    engine: EngineUnderTest = getattr(import_module(module), name)(settings)
    return engine


def _answered(engine: EngineUnderTest, line: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Return the answer to one line: to prompts that came together, with their seconds."""
    if "load" in line:
        engine.load(line["load"])
        return {"loaded": line["load"]}
    start = clock()
    answers = engine.answer(line["config"], line["prompts"], line["max_new_tokens"])
    wall_s = clock() - start
    return {"wall_s": wall_s, "answers": [asdict(answer) for answer in answers]}


def _tried(answers: TextIO, act: Callable[[], Any]) -> Any:
    """Return the result of `act`; None, after writing why, where it fails in any way."""
    try:
        return act()
    except Exception as error:
        lines = str(error).strip().splitlines()
        _write(answers, {"error": f"{type(error).__name__}: {lines[0]}" if lines else repr(error)})
        return None


def _write(answers: TextIO, values: dict[str, Any]) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def _own_output() -> TextIO:
    """Return standard output as it was; whatever libraries print goes to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


@dataclass(frozen=True, slots=True)
class EngineReply:
    """Answers to prompts that came together, and the seconds that they took."""

    wall_s: float
    answers: tuple[EngineAnswer, ...]


class EngineProcess:
    """Process of one engine under test."""

    def __init__(self, settings: EngineSettings) -> None:
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

    def send(
        self, config: str, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> EngineReply:
        """Send prompts together. Raises `ServiceError` where one fails."""
        request = {"config": config, "prompts": [list(ids) for ids in prompts]}
        reply = self._exchange(request | {"max_new_tokens": max_new_tokens})
        return EngineReply(reply["wall_s"], tuple(map(answer_of, reply["answers"])))

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
