"""Processes that are forked from one which has loaded everything, so that they start in no time.

They have signals, memory and ports of their own, as any process. None outlives the tests.
"""

import asyncio
import ctypes
import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from chaos import clocks
from support.commands import IMPORT_PATH
from support.services.stalls import LoopWatch, write_stall

ROLES = ("router", "target", "draft", "gateway")
_LOADED = [
    *("slipstream_gateway.server", "transformers.models.llama.modeling_llama", "redis.asyncio")
]
_PR_SET_PDEATHSIG = 1
_STALL_MS = 20.0
"""CPU time from which on services write what holds their event loops."""
_CONTEXT = multiprocessing.get_context("forkserver")


def begin(folder: Path) -> None:
    """Start the process that others are forked from, which takes a while to load everything."""
    _CONTEXT.set_forkserver_preload([*(f"slipstream_{role}.__main__" for role in ROLES), *_LOADED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", IMPORT_PATH)
        patch.setenv("OMP_NUM_THREADS", "1")
        for name, value in clocks.preloading(folder).items():
            patch.setenv(name, value)
        forkserver.ensure_running()


def finish() -> None:
    first = _CONTEXT.Process(target=os.getpid)
    first.start()
    first.join()


class Forked:
    """A running process: a service by its role, or else a program by its path. After `finish`."""

    def __init__(
        self,
        words: Sequence[str],
        out: Path,
        err: Path,
        *,
        clock: Path | None = None,
        enter: Callable[[], None] | None = None,
    ) -> None:
        """`words` are the role or path and its flags; what it says goes to the files. `enter` moves
        it to a host."""
        out.write_text("")
        self.out = out
        arguments = (list(words), str(out), str(err), clock, enter)
        self._process: BaseProcess = _CONTEXT.Process(target=_become, args=arguments, daemon=True)
        self._process.start()

    @property
    def is_there(self) -> bool:
        return self._process.exitcode is None

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        if self.is_there and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def limit_files(self, most_bytes: int) -> None:
        """Let it write no file beyond so many bytes: to a longer one it can't write at all."""
        if self.is_there and self._process.pid is not None:
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (most_bytes, hard))

    async def wait(self) -> int:
        """Return the exit code once the process has ended; minus a signal that ended it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def _become(
    words: list[str], out: str, err: str, clock: Path | None, enter: Callable[[], None] | None
) -> None:
    """Make the new process what was asked for; it ends with its parent."""
    if enter is not None:
        enter()
    if clock is not None:
        os.environ.update(clocks.following(clock))
        clocks.follow(clock)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    if words[0] not in ROLES:
        os.execv(words[0], words)
    service = importlib.import_module(f"slipstream_{words[0]}.__main__")
    LoopWatch(write_stall, limit_ms=_STALL_MS).start()
    sys.exit(service.main(words[1:]))
