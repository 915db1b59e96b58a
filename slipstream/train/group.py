"""Group of processes that train one draft, each on its part of every batch.

They are this process alone, or those of torchrun. Every collective call must be made by all
members, in the same order.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slipstream.models.loaded import parse_device
from slipstream.train.config import Precision

_CPU = torch.device("cpu")


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
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        return float(shared)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model to call in training: its gradients are means over the members'."""
        return DistributedDataParallel(model) if self.size > 1 else model

    def autocast(self, precision: Precision) -> torch.autocast:
        """Return mixed precision on this member's device, or none for float32."""
        is_mixed = precision is Precision.BFLOAT16
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_mixed)


SINGLE_PROCESS = TrainGroup()
_WAIT = timedelta(hours=12)
"""Longest wait of members for each other: the lead measures alone."""


@contextmanager
def train_group(device: str) -> Iterator[TrainGroup]:
    """Join the processes that torchrun has started, on CUDA with a GPU each; else be alone."""
    if not dist.is_torchelastic_launched():
        yield TrainGroup(device=torch.device(parse_device(device)))
        return
    is_cuda = device.startswith("cuda")
    dist.init_process_group("nccl" if is_cuda else "gloo", timeout=_WAIT)
    try:
        rank = dist.get_node_local_rank()
        own = torch.device(parse_device(f"cuda:{rank}" if device == "cuda" else device))
        if is_cuda:
            torch.cuda.set_device(own)
        yield TrainGroup(dist.get_rank(), dist.get_world_size(), own)
    finally:
        gc.collect()  # wrapped models are circles, and hold the group: its threads end with it
        dist.destroy_process_group()
