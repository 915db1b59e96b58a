"""One service as a child process, `python -m MODULE`: started, waited for, stopped.

It is ready once it writes the line `ready HOST:PORT`.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.config import child_environment
from slipstream.core.errors import BAD_INPUT, InvalidRequest, ServiceError
from slipstream.parent_watch import watched_command

OnLine = Callable[[str, str], None]
"""Called with the name of a child and a line that it wrote."""

READY = "ready "
ERROR = "error: "
_LONGEST = 1 << 24
"""Bytes of a line: more than any service writes."""


class Child:
    """A running service. Made by `start_child`; does not outlive the thread that did so."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self.name = name
        self._process = process
        self._on_line = on_line
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_line = ""
        self._error = ""
        self._running = asyncio.create_task(self._run())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> str:
        """Return the address it serves on, once it does.

        When it ends before, raises `InvalidRequest` for options that it can't use, otherwise
        `ServiceError`, with its last error line, or else how it ended.
        """
        either: set[asyncio.Future[Any]] = {self._address, self._running}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._address.done():
            return self._address.result()
        code, reason = self._process.returncode or 0, self._error or self.exit_text()
        if code > 0 and self._last_line and not self._error:  # such as the end of a traceback
            reason = f"{reason} ({self._last_line})"
        kind = InvalidRequest if code == BAD_INPUT else ServiceError
        raise kind(f"the {self.name} did not start: {reason}")

    async def ended(self) -> None:
        """Wait until the process has ended and all that it wrote was reported."""
        await asyncio.shield(self._running)

    def exit_text(self) -> str:
        """Return how it ended, in words."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and kill it when it has not ended after the grace. May be repeated."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.ended()
        except TimeoutError:
            self._on_line(self.name, f"has not ended within {grace_s:g} s and is killed")
        finally:  # also when this is cancelled
            self._signal(signal.SIGKILL)
        await self.ended()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _run(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(self._process.stdout))
            group.create_task(self._listen(self._process.stderr))
            group.create_task(self._process.wait())

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        async for data in stream:
            line = data.decode(errors="replace").rstrip("\r\n")
            if line.startswith(READY) and not self._address.done():
                self._address.set_result(line.removeprefix(READY))
            elif line:
                self._last_line = line
                if line.startswith(ERROR):
                    self._error = line.removeprefix(ERROR)
                self._on_line(self.name, line)


def show(name: str, line: str) -> None:
    """Write a child's line to standard error, behind its name."""
    sys.stderr.write(f"{name:<7}| {line}\n")
    sys.stderr.flush()


async def start_child(
    name: str,
    module: str,
    flags: Sequence[str],
    *,
    on_line: OnLine,
    defaults: Mapping[str, str] | None = None,
) -> Child:
    """Start `python -m module flags` in a process group of its own, so that Ctrl-C is not for it.

    `defaults` are environment variables for the child where ours do not set them.
    """
    command = [sys.executable, "-m", module, *flags]
    process = await asyncio.create_subprocess_exec(
        *watched_command(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(defaults or {}),
        limit=_LONGEST,
    )
    return Child(name, process, on_line)
