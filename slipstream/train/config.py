"""Settings of a training run, and the processes that share it, each with its part of every batch.

The processes are this one alone, or those of torchrun. Every collective call must be made by all
members, in the same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slipstream.core.errors import TrainingError
from slipstream.models.loaded import parse_device
from slipstream.options import Bounded, check_bounds, option

LENGTH = "Length and speed"
"""Heading of options in `--help`."""
WARMUP, FLOOR, GRAD_CLIP = 0.03, 0.02, 1.0
MAX_WEIGHT = 1e6
"""Largest weight of a loss term."""
MAX_UNROLLED = 32
"""Most steps that a draft is unrolled on its own outputs."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Weights of the loss terms of every kind of draft; 0 switches one off."""

    PANEL: ClassVar[str] = "Loss"

    prompt_weight: float = option(
        0.5, "Weight of prompt positions beside generated ones.", least=0, most=1
    )
    kl_weight: float = option(
        1.0, "Weight of the divergence from the target's distribution.", least=0, most=MAX_WEIGHT
    )
    acceptance_weight: float = option(
        0.0, "Weight of -log of the chance of acceptance (LK loss).", least=0, most=MAX_WEIGHT
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if not any((self.kl_weight, self.acceptance_weight, getattr(self, "hidden_weight", 0))):
            raise TrainingError("every loss term has weight 0, there is nothing to learn")


@dataclass(frozen=True, slots=True)
class GlideLoss(LossSettings):
    """Loss of a GliDe draft, with block lengths of the cross mask.

    The distance to the target's final hidden state is smooth L1.
    """

    hidden_weight: float = option(
        3.0, "Weight of the distance to the target's hidden state.", least=0, most=MAX_WEIGHT
    )
    block_min: int = option(2, "Shortest block of the cross mask.", least=1)
    block_max: int = option(8, "Longest block: the largest lag.")

    def __post_init__(self) -> None:
        LossSettings.__post_init__(self)
        if self.block_min > self.block_max:
            raise TrainingError(
                f"block_min is {self.block_min}, above block_max, which is {self.block_max}"
            )


@dataclass(frozen=True, slots=True)
class EagleLoss(LossSettings):
    """Loss of an EAGLE-3 head, over the steps of its training-time test."""

    unrolled: int = option(
        5, "Steps of the training-time test, each on the step before.", least=1, most=MAX_UNROLLED
    )


@dataclass(frozen=True, slots=True)
class TrainSchedule:
    """Length and speed of training: either `steps` or `minutes` bounds the run.

    lr rises linearly over `WARMUP` (a fraction of the run), then falls as a cosine to
    `lr * FLOOR`.
    """

    PANEL: ClassVar[str] = LENGTH

    steps: int | None = option(None, "Length of the run in steps.", least=1)
    minutes: float | None = option(None, "Length of the run in minutes.", above=0)
    lr: float = option(8e-4, "Peak learning rate.", above=0)

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.steps is None) == (self.minutes is None):
            raise TrainingError("give either a number of steps or of minutes, not both or neither")


class Precision(StrEnum):
    """Type of products; weights and their averages are float32 always."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class TrainSettings(Bounded):
    """Settings of a run that change its result, of every kind of draft."""

    PANEL: ClassVar[str] = LENGTH

    schedule: TrainSchedule
    batch_tokens: int = option(4096, "Tokens in a batch, padding included.", least=1)
    weight_decay: float = option(0.05, "Weight decay of matrices.", least=0)
    precision: Precision = option(
        Precision.BFLOAT16, "Type of matrix products.", rich_help_panel="Machine"
    )
    seed: int = option(0, "Seed of data order and masks.", min=0)
    heldout: int = option(60, "Prompts held out for the checks.", least=1, rich_help_panel="Checks")
    export_minutes: float = option(
        4.0, "Minutes between held-out checks.", above=0, rich_help_panel="Checks"
    )
    report_seconds: float = 30.0


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
        dist.destroy_process_group()
