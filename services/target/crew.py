"""The processes that hold a large target together with this one: started, told, watched, ended.

Each is a `slipstream.target.follower` on a leash, with one connection over which steps go out.
What a step means is `slipstream.models.tensor_parallel`'s part.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch

from slipstream.core.errors import InvalidRequest
from slipstream.leash import leashed
from slipstream.models.invariance import Numerics
from slipstream.models.loading import check_ranks
from slipstream.models.ranks import join_ranks, leave_ranks
from slipstream.models.store.resolve import resolve
from slipstream.models.tensor_parallel import TensorParallelGroup, WorkerStep
from slipstream.target.config import TargetConfig

_LOG = logging.getLogger("slipstream.target")
_GRACE_S = 10.0
"""How long a follower may take to end."""
_MOMENT_S = 1.0
"""How long an error may be ahead of the news that a follower has ended."""

Lost = Callable[[str, bool], None]
"""Told once why the ranks can't go on, and whether that is because of what they were told to do.
Any thread; does not return in a process that serves."""


@dataclass(frozen=True, slots=True)
class CrewPlan:
    """What all ranks must agree on."""

    size: int
    model: Path
    dtype: str
    device: str
    numerics: Numerics
    num_threads: int
    """Of each rank."""
    pin_threads: bool = False


@dataclass(frozen=True, slots=True)
class Post:
    """What one follower is and does, and where the ranks meet."""

    rank: int
    meeting: str
    plan: CrewPlan


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why a follower ends of its own accord."""

    reason: str
    is_input: bool


@dataclass(frozen=True, slots=True)
class _Member:
    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection


class Crew:
    """The followers of this process, which is rank 0. They do not outlive the thread that made it.

    Use it as a context. `lost` hears of the first one that ends before that, and of what the leader
    can't go on with.
    """

    def __init__(self, plan: CrewPlan, lost: Lost) -> None:
        """Start the followers; they load while this rank does."""
        self._plan = plan
        self._lost = lost
        self._over = threading.Event()
        self._first = threading.Lock()
        # A file without a name, which every rank has open: nothing of it stays behind.
        self._file = os.memfd_create("slipstream-ranks")
        self._members = [self._start(rank) for rank in range(1, plan.size)]
        for member in self._members:
            _LOG.info("rank %d of %d is process %d", member.rank, plan.size, member.process.pid)
            threading.Thread(target=self._watch, args=(member,), daemon=True).start()

    def meet(self) -> TensorParallelGroup:
        """Meet them, as rank 0, on the thread that will compute."""
        plan = self._plan
        ranks = join_ranks(0, plan.size, device=plan.device, meeting=self._meeting)
        return TensorParallelGroup(ranks, self)

    def send(self, step: WorkerStep | None) -> None:
        """See `models.tensor_parallel.Workers`. None is the last step."""
        for member in self._members:
            member.connection.send(step)

    def fail(self, reason: str) -> None:
        """See `models.tensor_parallel.Workers`."""
        if not self._over.wait(_MOMENT_S):  # where a follower has ended, that is the reason
            self._end_with(reason, is_input=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the followers: at once after an error, for they may wait for this rank."""
        self._over.set()
        if error is None:
            with suppress(OSError):
                self.send(None)
        for member in self._members:
            self._end(member, 0.0 if error else _GRACE_S)
        leave_ranks()
        os.close(self._file)

    @property
    def _meeting(self) -> str:
        return f"/proc/self/fd/{self._file}"

    def _start(self, rank: int) -> _Member:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                leashed([sys.executable, "-m", "slipstream.target.follower", str(number)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(number, self._file),
            )
        connection = Connection(ours.detach())
        connection.send(Post(rank, self._meeting, self._plan))
        return _Member(rank, process, connection)

    def _end(self, member: _Member, grace_s: float) -> None:
        try:
            member.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()

    def _watch(self, member: _Member) -> None:
        """A follower says nothing unless it ends."""
        try:
            said = member.connection.recv()
        except (EOFError, OSError):
            said = None
        code = member.process.wait()
        if isinstance(said, Farewell):
            self._end_with(said.reason, is_input=said.is_input)
        else:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            self._end_with(f"rank {member.rank} of the target ended {how}", is_input=False)

    def _end_with(self, reason: str, *, is_input: bool) -> None:
        with self._first:
            if self._over.is_set():
                return
            self._over.set()
        self._lost(reason, is_input)


def start_crew(config: TargetConfig, lost: Lost) -> AbstractContextManager[Crew | None]:
    """The followers that a configuration wants, if any.

    Raises `InvalidRequest` for a model that can't be split so, or a machine without the GPUs, and
    what finding a model raises.
    """
    size = config.tensor_parallel
    if size == 1:
        return nullcontext()
    check_devices(config.device, size)
    path = resolve(config.model)
    check_ranks(path, size)
    threads = rank_threads(config)
    assert threads is not None
    numerics = cast(Numerics, config.numerics)
    plan = CrewPlan(size, path, config.dtype, config.device, numerics, threads, config.pin_threads)
    return Crew(plan, lost)


def rank_threads(config: TargetConfig) -> int | None:
    """Threads of each rank; None is torch's choice for a process that is alone."""
    if config.threads is not None or config.tensor_parallel == 1:
        return config.threads
    return max(1, torch.get_num_threads() // config.tensor_parallel)


def check_devices(device: str, size: int) -> None:
    """Raises `InvalidRequest` where there is no place for so many ranks."""
    if device == "cpu":
        if torch.accelerator.is_available():
            raise InvalidRequest(
                f"tensor_parallel is {size} and device is cpu, but this machine has GPUs, which"
                " would be taken: hide them with CUDA_VISIBLE_DEVICES="
            )
        return
    if device != "cuda":
        raise InvalidRequest(
            f"tensor_parallel is {size}, so that ranks take GPUs 0 to {size - 1}, but device is"
            f" {device}: say cuda"
        )
    if torch.cuda.device_count() < size:
        raise InvalidRequest(
            f"tensor_parallel is {size}, but this machine has {torch.cuda.device_count()} GPUs"
        )
