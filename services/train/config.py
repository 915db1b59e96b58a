"""Settings of a training run, checked at birth. Knows nothing of files or models."""

from dataclasses import dataclass

from slipstream.core.errors import TrainingError


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Weights of the loss terms and the block lengths of the cross mask.

    prompt_weight: weight of a prompt position beside a generated one; hidden_weight: weight of
    the smooth-L1 distance to the target's final hidden state (0 switches it off).
    """

    block_min: int = 2
    block_max: int = 8
    prompt_weight: float = 0.5
    hidden_weight: float = 3.0

    def __post_init__(self) -> None:
        if not 1 <= self.block_min <= self.block_max:
            raise TrainingError(
                f"block lengths must satisfy 1 <= min <= max, got "
                f"{self.block_min} and {self.block_max}"
            )
        if not 0 <= self.prompt_weight <= 1:
            raise TrainingError(f"prompt_weight is {self.prompt_weight}, not within 0..1")
        if self.hidden_weight < 0:
            raise TrainingError(f"hidden_weight is {self.hidden_weight}, it must not be negative")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long to train and how fast: either `steps` or `minutes` bounds the run.

    lr rises linearly over `warmup` (a fraction of the run), then falls as a cosine to
    `lr * floor`.
    """

    steps: int | None = None
    minutes: float | None = None
    lr: float = 8e-4
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


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Everything about a run that changes its result."""

    schedule: Schedule
    loss: LossSettings = LossSettings()
    batch_tokens: int = 4096
    weight_decay: float = 0.05
    grad_clip: float = 1.0
    seed: int = 0
    num_heldout: int = 60
    report_seconds: float = 30.0
    export_seconds: float = 240.0

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise TrainingError(f"batch_tokens is {self.batch_tokens}, it must be at least 1")
        if self.weight_decay < 0 or self.grad_clip <= 0:
            raise TrainingError("weight_decay must not be negative and grad_clip must be positive")
        if self.num_heldout < 1:
            raise TrainingError(f"num_heldout is {self.num_heldout}, it must be at least 1")
        if self.report_seconds <= 0 or self.export_seconds <= 0:
            raise TrainingError("report_seconds and export_seconds must be positive")
