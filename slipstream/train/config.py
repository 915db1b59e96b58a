"""Settings of a training run."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from slipstream.core.errors import TrainingError
from slipstream.options import option

LENGTH = "Length and speed"
"""Heading of options in `--help`."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Weights of the loss terms (0 switches one off), and block lengths of the cross mask.

    The distance to the target's final hidden state is smooth L1.
    """

    PANEL: ClassVar[str] = "Loss"

    block_min: int = option(2, "Shortest block of the cross mask.")
    block_max: int = option(8, "Longest block: the largest lag.")
    prompt_weight: float = option(0.5, "Weight of prompt positions beside generated ones.")
    kl_weight: float = option(1.0, "Weight of the divergence from the target's distribution.")
    acceptance_weight: float = option(0.0, "Weight of -log of the chance of acceptance (LK loss).")
    hidden_weight: float = option(3.0, "Weight of the distance to the target's hidden state.")

    def __post_init__(self) -> None:
        if not 1 <= self.block_min <= self.block_max:
            raise TrainingError(
                f"block lengths must satisfy 1 <= min <= max, got "
                f"{self.block_min} and {self.block_max}"
            )
        if not 0 <= self.prompt_weight <= 1:
            raise TrainingError(f"prompt_weight is {self.prompt_weight}, not within 0..1")
        terms = ("kl_weight", "acceptance_weight", "hidden_weight")
        for name in terms:
            if not 0 <= getattr(self, name) < math.inf:
                raise TrainingError(f"{name} is {getattr(self, name)}, not a number from 0 up")
        if not any(getattr(self, name) for name in terms):
            raise TrainingError("every loss term has weight 0, there is nothing to learn")


@dataclass(frozen=True, slots=True)
class TrainSchedule:
    """Length and speed of training: either `steps` or `minutes` bounds the run.

    lr rises linearly over `warmup` (a fraction of the run), then falls as a cosine to
    `lr * floor`.
    """

    PANEL: ClassVar[str] = LENGTH

    steps: int | None = option(None, "Length of the run in steps.")
    minutes: float | None = option(None, "Length of the run in minutes.")
    lr: float = option(8e-4, "Peak learning rate.")
    warmup: float = 0.03
    floor: float = 0.02

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise TrainingError("give either a number of steps or of minutes, not both or neither")
        if self.steps is not None and self.steps < 1:
            raise TrainingError(f"steps is {self.steps}, it must be at least 1")
        if self.minutes is not None and self.minutes <= 0:
            raise TrainingError(f"minutes is {self.minutes}, it must be positive")
        if self.lr <= 0:
            raise TrainingError(f"lr is {self.lr}, it must be positive")
        if not (0 <= self.warmup < 1 and 0 <= self.floor <= 1):
            raise TrainingError(f"warmup {self.warmup} or floor {self.floor} is not a fraction")


class Precision(StrEnum):
    """Type of products; weights and their averages are float32 always."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of a run that change its result; the options of `slipstream train glide`."""

    PANEL: ClassVar[str] = LENGTH

    schedule: TrainSchedule
    loss: LossSettings = LossSettings()
    batch_tokens: int = option(4096, "Tokens in a batch, padding included.")
    weight_decay: float = option(0.05, "Weight decay of matrices.")
    grad_clip: float = 1.0
    precision: Precision = option(
        Precision.BFLOAT16, "Type of matrix products.", rich_help_panel="Machine"
    )
    seed: int = option(0, "Seed of data order and masks.", min=0)
    heldout: int = option(60, "Prompts held out for the checks.", min=1, rich_help_panel="Checks")
    export_minutes: float = option(
        4.0, "Minutes between held-out checks.", rich_help_panel="Checks"
    )
    report_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "heldout"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.weight_decay < 0 or self.grad_clip <= 0:
            raise TrainingError("weight_decay must not be negative and grad_clip must be positive")
        if self.report_seconds <= 0 or self.export_minutes <= 0:
            raise TrainingError("report_seconds and export_minutes must be positive")
