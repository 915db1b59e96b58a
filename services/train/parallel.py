"""Several processes that train one draft, each on its part of every batch, and where one computes.

Knows nothing of losses or data: it sums, waits, and wraps a model. Every collective call must be
made by all members, in the same order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slipstream.train.config import Precision
from slipstream.train.features import Batch

_CPU = torch.device("cpu")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Team:
    """The processes of one run as seen by member `rank`; one alone needs no process group."""

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU

    @property
    def is_lead(self) -> bool:
        """Whether this member checks, saves and reports."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum of every member's `value`."""
        value = value.detach().clone()
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def of_lead(self, value: float) -> float:
        """The lead's `value`."""
        if self.size == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(told, src=0)
        return float(told)

    def lead_first(self, work: Callable[[], Item]) -> Item:
        """What `work` gives to each member; the others begin when the lead has done."""
        if self.is_lead:
            done = work()
        self.of_lead(0.0)
        return done if self.is_lead else work()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to call in training: its gradients are means over the members'."""
        return DistributedDataParallel(model) if self.size > 1 else model

    def place(self, batch: Batch) -> Batch:
        """`batch` on this member's device; copies to a GPU overlap what it computes."""
        if self.device.type == "cpu":
            return batch
        return Batch(
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
        """Mixed precision on this member's device, or none for float32."""
        is_mixed = precision is Precision.BFLOAT16
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_mixed)


ALONE = Team()
