"""Settings of a training run."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from slipstream.core.errors import TrainingError
from slipstream.options import Bounded, check_bounds, option

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

    PANEL: ClassVar[str] = "Length and speed"

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

    PANEL: ClassVar[str] = "Length and speed"

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
