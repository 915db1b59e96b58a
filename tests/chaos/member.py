"""One process of a cluster, started again at its address whenever it ends, as Kubernetes would."""

import asyncio
import resource
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos import clocks
from chaos.nursery import Forked
from slipstream.local.child import READY

START_LIMIT_S = 300.0
_WORDS = 40
"""Lines of a log that a failure shows."""
_GLANCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Command:
    """What to start, and whether it serves."""

    words: Sequence[str]
    serves: Callable[[Forked], Awaitable[bool]]
    enter: Callable[[], None] | None = None
    """Moves a process to its host."""


class Member:
    """A process that is always there again. `start`, then any signal, then `stop`."""

    def __init__(self, name: str, command: Command, folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._out, self._clock = folder / f"{name}.out", folder / f"{name}.clock"
        self.set_clock(0)
        self._command = command
        self._process: Forked | None = None
        self._up = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self.codes: list[int] = []
        """How each process that has ended did so."""

    def start(self) -> None:
        """From now on there is a process, until `stop`."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def ready(self) -> None:
        """Wait until the newest process serves."""
        assert self._keeping is not None
        up = asyncio.ensure_future(self._up.wait())
        either = {up, self._keeping}
        await asyncio.wait(either, timeout=START_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._keeping.done():
            self._keeping.result()
        if not self._up.is_set():
            raise AssertionError(f"{self.name} does not serve; its last words:\n{self.words()}")

    async def ended(self, times: int) -> int:
        """The exit code of the process that is the so-manieth to end."""
        async with asyncio.timeout(START_LIMIT_S):
            while len(self.codes) < times:
                await asyncio.sleep(_GLANCE_S)
        return self.codes[times - 1]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        self._up.clear()
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it where it is; its connections stay."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Let it write no more to any file, as on a full disk."""
        self._limit_files(0)

    def free_disk(self) -> None:
        self._limit_files(resource.RLIM_INFINITY)

    def set_clock(self, seconds: int) -> None:
        """Set its time of day so far ahead, or behind, for its next processes, too."""
        clocks.set_clock(self._clock, seconds)

    def terminate(self) -> None:
        """Ask it to end; it serves what runs."""
        self._signal(signal.SIGTERM)

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it for good, by a signal. May be repeated."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        self._signal(number)
        if self._process is not None:
            self.codes.append(await self._process.wait())

    def words(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-_WORDS:])

    def _limit_files(self, most_bytes: int) -> None:
        if self._process is not None:
            self._process.limit_files(most_bytes)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    async def _keep(self) -> None:
        while True:
            of = self._command
            self._process = Forked(of.words, self._out, self.log, clock=self._clock, enter=of.enter)
            upping = asyncio.ensure_future(self._wait_up(self._process))
            try:
                self.codes.append(await self._process.wait())
            finally:
                upping.cancel()
                self._up.clear()

    async def _wait_up(self, process: Forked) -> None:
        while not await self._command.serves(process):
            await asyncio.sleep(_GLANCE_S)
        self._up.set()


async def says_ready(process: Forked) -> bool:
    return process.out.read_text().startswith(READY)
