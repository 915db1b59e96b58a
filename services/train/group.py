"""Group of processes that train one draft, each on its part of every batch.

They are this process alone, local processes, those of torchrun, or Ray Train workers. Every
collective call must be made by all members, in the same order.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, spawn
from torch.nn.parallel import DistributedDataParallel

from slipstream.core.errors import SlipstreamError, TrainingError
from slipstream.models.loading import parse_device
from slipstream.train.config import Precision
from slipstream.train.features import TrainBatch

_CPU = torch.device("cpu")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """Processes of one run as seen by member `rank`; one alone needs no process group of torch."""

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU

    @property
    def is_lead(self) -> bool:
        """Return whether this member checks, saves and reports."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of every member's `value`."""
        value = value.detach().clone()
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def of_lead(self, value: float) -> float:
        """Return the lead's `value`."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        return float(shared)

    def lead_first(self, work: Callable[[], Item]) -> Item:
        """Return the result of `work` in each member; the others begin when the lead has done."""
        if self.is_lead:
            done = work()
        self.of_lead(0.0)
        return done if self.is_lead else work()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model to call in training: its gradients are means over the members'."""
        return DistributedDataParallel(model) if self.size > 1 else model

    def place(self, batch: TrainBatch) -> TrainBatch:
        """Return `batch` on this member's device; copies to a GPU overlap what it computes."""
        if self.device.type == "cpu":
            return batch
        return TrainBatch(
            ids=self._moved(batch.ids),
            kvs=tuple((self._moved(keys), self._moved(values)) for keys, values in batch.kvs),
            hidden=self._moved(batch.hidden),
            argmax=self._moved(batch.argmax),
            lengths=self._moved(batch.lengths),
            num_prompts=self._moved(batch.num_prompts),
        )

    def _moved(self, value: Tensor) -> Tensor:
        if value.device.type != "cpu":
            return value
        return value.pin_memory().to(self.device, non_blocking=True)

    def autocast(self, precision: Precision) -> torch.autocast:
        """Return mixed precision on this member's device, or none for float32."""
        is_mixed = precision is Precision.BFLOAT16
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_mixed)


SINGLE_PROCESS = TrainGroup()


Work = Callable[[TrainGroup], None]
"""Work of each member; it must survive pickling where processes are started."""

_WAIT = timedelta(hours=12)
"""Longest wait of members for each other: the lead may compute features first."""


def run_group(work: Work, *, device: str, num_processes: int) -> None:
    """Run `work` in every member and return when all have done.

    On CUDA each member has a GPU of its own. A `SlipstreamError` of a member is raised here as a
    `TrainingError` that says the same.
    """
    if dist.is_torchelastic_launched():
        if num_processes > 1:
            raise TrainingError("torchrun has started the processes already: drop --nproc")
        dist.init_process_group(_backend(device), timeout=_WAIT)
        _as_member(work, device, dist.get_node_local_rank())
    elif num_processes == 1:
        work(TrainGroup(device=torch.device(parse_device(device))))
    else:
        _check_devices(device, num_processes)
        _spawn(work, device, num_processes)


def _spawn(work: Work, device: str, size: int) -> None:
    with TemporaryDirectory() as place:
        try:
            spawn(_member, (work, device, size, Path(place)), nprocs=size)
        except ProcessException:
            for path in sorted(Path(place).glob("error-*")):
                raise TrainingError(path.read_text(encoding="utf-8")) from None
            raise


def _member(rank: int, work: Work, device: str, size: int, place: Path) -> None:
    """Run `work` in a local process."""
    meeting = f"file://{place}/meeting"
    try:
        dist.init_process_group(
            _backend(device), init_method=meeting, rank=rank, world_size=size, timeout=_WAIT
        )
        _as_member(work, device, rank)
    except SlipstreamError as error:
        (place / f"error-{rank}").write_text(str(error), encoding="utf-8")
        raise


def _as_member(work: Work, device: str, local_rank: int) -> None:
    """Run `work` within a process group, then leave it."""
    own = torch.device(parse_device(f"cuda:{local_rank}" if device == "cuda" else device))
    if own.type == "cuda":
        torch.cuda.set_device(own)
    try:
        work(TrainGroup(dist.get_rank(), dist.get_world_size(), own))
    finally:
        dist.destroy_process_group()


def _backend(device: str) -> str:
    return "nccl" if device.startswith("cuda") else "gloo"


def _check_devices(device: str, num_processes: int) -> None:
    if re.fullmatch(r"cuda:\d+", device):
        raise TrainingError(f"{num_processes} processes can't share {device}: give --device cuda")
    if device == "cuda" and torch.cuda.device_count() < num_processes:
        raise TrainingError(
            f"{num_processes} processes need as many GPUs, but {torch.cuda.device_count()} are here"
        )


def run_ray_group(work: Work, *, num_workers: int, has_gpus: bool, directory: Path) -> None:
    """Run `work` in `num_workers` Ray workers, with a GPU each or on CPUs.

    Joins the cluster that Ray's own settings name, or starts one on this machine; all nodes must
    see the paths that `work` uses and `directory`, where Ray keeps its records. A
    `SlipstreamError` of a worker is raised here as a `TrainingError` that says the same.
    """
    if find_spec("ray") is None:
        raise TrainingError("--ray needs Ray: pip install 'slipstream[ray]'")
    # An optional extra, hence here.
    from ray.train import RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    def member() -> None:
        from ray.train.torch import get_device  # noqa: PLC0415

        work(TrainGroup(dist.get_rank(), dist.get_world_size(), get_device()))

    trainer = TorchTrainer(
        member,
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=has_gpus),
        run_config=RunConfig(name="glide", storage_path=str(directory.absolute())),
    )
    try:
        trainer.fit()
    except Exception as error:
        raise _own(error) or error from None


def _own(error: BaseException) -> TrainingError | None:
    """Return the error of our worker, somewhere in what Ray makes of it."""
    failures = getattr(error, "worker_failures", {}).values()
    for inner in (*failures, error.__cause__):
        if isinstance(inner, SlipstreamError):
            return TrainingError(str(inner))
        found = None if inner is None else _own(inner)
        if found:
            return found
    return None
