"""The driver of tensor parallelism: it starts, watches and ends the worker processes.

Each worker is a `slipstream_target.tensor_parallel_worker` that ends with its parent, and gets
orders over a connection. What an order means is decided in `slipstream.models`.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Self

import torch

from slipstream.core.errors import InvalidRequest
from slipstream.models.dtypes import FP8
from slipstream.models.format.resolve import resolve
from slipstream.models.torch.loading import check_ranks
from slipstream.models.torch.ranks import join_ranks, leave_ranks
from slipstream.models.torch.tensor_parallel import TensorParallelGroup, WorkerStep
from slipstream.parent_watch import watched_command
from slipstream_target.config import TargetConfig

_LOG = logging.getLogger("slipstream.target")
_GRACE_S = 10.0
"""Longest time for a worker to end."""
_MOMENT_S = 1.0
"""Longest time by which an error may come before the end of the worker that caused it."""

OnLost = Callable[[str, bool], None]
"""Called once with the reason why the ranks can't go on, and whether that is bad input. From any
thread; does not return in a process that serves."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """First message to a worker: its rank, the file where the ranks meet, and the options of the
    target, of which the threads are those of each rank."""

    rank: int
    meeting: str
    config: TargetConfig


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Last message of a worker that fails."""

    reason: str
    is_input: bool


@dataclass(frozen=True, slots=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection


class WorkerProcesses:
    """Rank 0, this process, and its workers. They do not outlive the thread that made it.

    Use it as a context. `on_lost` is called when a worker ends before that, and for errors that
    rank 0 can't go on with.
    """

    def __init__(self, config: TargetConfig, on_lost: OnLost) -> None:
        """Start the workers; they load while this rank does."""
        self._config, size = config, config.tensor_parallel
        self._on_lost = on_lost
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        # A file without a name, which every rank has open: nothing of it stays behind.
        self._file = os.memfd_create("slipstream-ranks")
        self._meeting = f"/proc/self/fd/{self._file}"
        self._workers = [self._start(rank) for rank in range(1, size)]
        for worker in self._workers:
            _LOG.info("rank %d of %d is process %d", worker.rank, size, worker.process.pid)
            threading.Thread(target=self._watch, args=(worker,), daemon=True).start()

    def join(self) -> TensorParallelGroup:
        """Join the workers as rank 0, on the thread that will compute."""
        size, compute = self._config.tensor_parallel, self._config.compute
        ranks = join_ranks(0, size, device=compute.device, meeting=self._meeting)
        return TensorParallelGroup(ranks, self, is_scaled=compute.dtype == FP8)

    def send(self, step: WorkerStep | None) -> None:
        """See `models.torch.tensor_parallel.Workers`. None is the last step."""
        message = ForkingPickler.dumps(step)
        for worker in self._workers:
            worker.connection.send_bytes(message)

    def fail(self, reason: str) -> None:
        if not self._is_over.wait(_MOMENT_S):  # where a worker has ended, that is the reason
            self._lose(reason, is_input=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers: at once after an error, for they may wait for this rank."""
        self._is_over.set()
        if error is None:
            with suppress(OSError):
                self.send(None)
                leave_ranks()  # as they do, at the same time
        for worker in self._workers:
            try:
                worker.process.wait(0.0 if error else _GRACE_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        leave_ranks()
        os.close(self._file)

    def _start(self, rank: int) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            module = "slipstream_target.tensor_parallel_worker"
            process = subprocess.Popen(
                watched_command([sys.executable, "-m", module, str(number)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(number, self._file),
            )
        connection = Connection(ours.detach())
        connection.send(WorkerTask(rank, self._meeting, self._config))
        return _Worker(rank, process, connection)

    def _watch(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            message = None
        code = worker.process.wait()
        if isinstance(message, WorkerFailure):
            self._lose(message.reason, is_input=message.is_input)
        else:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            self._lose(f"rank {worker.rank} of the target ended {how}", is_input=False)

    def _lose(self, reason: str, *, is_input: bool) -> None:
        with self._lock:
            if self._is_over.is_set():
                return
            self._is_over.set()
        self._on_lost(reason, is_input)


def start_workers(config: TargetConfig, on_lost: OnLost) -> WorkerProcesses:
    """Start the workers. Raises `InvalidRequest` for a model or machine that can't be split so."""
    size = config.tensor_parallel
    check_devices(config.compute.device, size)
    path = resolve(config.model)
    check_ranks(path, size)
    compute = replace(config.compute, threads=config.rank_threads())
    return WorkerProcesses(replace(config, model=str(path), compute=compute), on_lost)


def check_devices(device: str, size: int) -> None:
    """Raise `InvalidRequest` where there are no devices for so many ranks."""
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
