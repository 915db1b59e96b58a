"""Real service processes on a tiny checkpoint: started, listened to, killed, and always ended."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from support.models.tiny_checkpoint import change_config, save_checkpoint
from support.services.stalls import WATCHED, check_stalls, stalls_in

LIMIT_S = 240.0
CONTEXT = 2048
PATIENT = {
    "SLIPSTREAM_ROUTER_DRAFT_ROUND_TIMEOUT_S": "30",
    "SLIPSTREAM_ROUTER_REPLICA_TIMEOUT_S": "60",
}
"""A busy machine makes no draft late and no replica lost."""


def save_long_checkpoint(folder: Path) -> Path:
    """The tiny checkpoint with a context in which a request takes a while."""
    change_config(save_checkpoint(folder), max_position_embeddings=CONTEXT)
    return folder


class Process:
    """A Python module as a process, and the lines it writes. Use it as a context."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        fixed = {"OMP_NUM_THREADS": "1", **WATCHED, **PATIENT}
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            env={**os.environ, **fixed, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._heard = threading.Condition()
        self._num_open = 2
        pipes = ((self._process.stdout, self.out), (self._process.stderr, self.err))
        self._listeners = [threading.Thread(target=self._listen, args=pipe) for pipe in pipes]
        for listener in self._listeners:
            listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ready(self) -> str:
        """Return its address, once it serves."""
        return self._until(self.out, "ready ").removeprefix("ready ")

    def until_logged(self, text: str, *, times: int = 1) -> str:
        """The line of standard error that holds the text for so many times."""
        return self._until(self.err, text, times=times)

    def child(self, role: str) -> int:
        """The process of a service that this one has started."""
        return next(iter(children(self.pid, f"slipstream_{role}")))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Return its exit code, once it has ended and all is read; no loop may have been held."""
        code = self._process.wait(limit_s)
        for listener in self._listeners:
            listener.join(LIMIT_S)
        check_stalls(stalls_in("\n".join(self.err)))
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        if error is not None:
            error.add_note("\n".join(["standard error was:", *self.err]))

    def _until(self, lines: Sequence[str], text: str, *, times: int = 1) -> str:
        def found() -> list[str]:
            return [line for line in lines if text in line]

        with self._heard:
            self._heard.wait_for(lambda: len(found()) >= times or not self._num_open, LIMIT_S)
            assert len(found()) >= times, f"{text!r} was not said: {self.out} {self.err}"
            return found()[times - 1]

    def _listen(self, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            with self._heard:
                lines.append(line.rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._num_open -= 1
            self._heard.notify_all()


def up(model: Path, draft: str, *flags: str, env: dict[str, str] | None = None) -> Process:
    """`slipstream up` on a model's directory, in float32 and on a free port.

    It keeps traces only where `flags` say so: the cache is the user's.
    """
    named = ["--model", str(model), "--draft", draft, "--dtype", "float32", "--port", "0"]
    named += [] if "--traces" in flags else ["--traces", "none"]
    return Process("slipstream.cli.main", "up", *named, *flags, env=env)


def serve(role: str, *flags: str, env: dict[str, str] | None = None) -> Process:
    return Process(f"slipstream_{role}", *flags, env=env)


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> str:
    """Return the command line of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def children(pid: int, module: str) -> set[int]:
    """Process ids of the children of a process that run a module."""
    found = set[int]()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # of a thread that has ended since
            found |= {int(child) for child in (thread / "children").read_text().split()}
    return {child for child in found if module in command_line(child)}


def text_workers(pid: int | None = None) -> set[int]:
    """Process ids of the workers that encode prompts for a process, by default for this one."""
    return children(pid or os.getpid(), "slipstream.text.worker")


def has_loaded(pid: int, library: str) -> bool:
    """Return whether a file of this name is mapped into a process."""
    return library in Path(f"/proc/{pid}/maps").read_text()
