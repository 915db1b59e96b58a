"""The options of `slipstream train glide`, in groups, and what they mean. Loads no torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from slipstream.core.errors import TrainingError

if TYPE_CHECKING:
    from slipstream.train.config import TrainSettings

_DRAFT = "Draft"
_FILES = "Files"
_LOSS = "Loss"
_LENGTH = "Length and speed"
_CHECKS = "Checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFlags:
    """What is trained."""

    target: Annotated[
        str, Option(help="Target model: an alias, a path or a hub id.", rich_help_panel=_DRAFT)
    ]
    layers: Annotated[
        str,
        Option(
            help="Target layers to read, as 19,28,29.",
            show_default="the last",
            rich_help_panel=_DRAFT,
        ),
    ] = ""
    no_cross: Annotated[
        bool,
        Option(
            "--no-cross",
            help="Read no target layers: a draft without cross-attention.",
            rich_help_panel=_DRAFT,
        ),
    ] = False
    num_layers: Annotated[
        int,
        Option(help="Layers of the draft, each with all cross-attentions.", rich_help_panel=_DRAFT),
    ] = 1
    head_size: Annotated[
        int, Option(help="Tokens in the trimmed head.", rich_help_panel=_DRAFT)
    ] = 8192
    init_from: Annotated[
        Path | None,
        Option(
            help="Weights to start from.",
            show_default="the target's layers",
            rich_help_panel=_DRAFT,
        ),
    ] = None

    def facts(self) -> dict[str, Any]:
        """By the names of a run. Raises `TrainingError` for layers that mean nothing."""
        return {
            "target": self.target,
            "layers": _layers_read(self.layers, is_none=self.no_cross),
            "num_layers": self.num_layers,
            "head_size": self.head_size,
            "init_from": self.init_from,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFlags:
    """Where things are."""

    data: Annotated[
        list[Path],
        Option(
            help="JSON lines to train on, or a directory of shards; repeatable.",
            rich_help_panel=_FILES,
        ),
    ]
    out: Annotated[Path, Option(help="Directory for the weights.", rich_help_panel=_FILES)]
    export_hf: Annotated[
        Path | None,
        Option(
            help="Write a --no-cross draft there, too, as a checkpoint that transformers loads.",
            show_default="nowhere",
            rich_help_panel=_FILES,
        ),
    ] = None
    run_dir: Annotated[
        Path | None,
        Option(
            help="Directory for checkpoints and plots.",
            show_default="OUT.run",
            rich_help_panel=_FILES,
        ),
    ] = None
    feature_dir: Annotated[
        Path | None,
        Option(
            help="Directory for target features; one may serve several runs.",
            show_default="RUN_DIR/features",
            rich_help_panel=_FILES,
        ),
    ] = None
    feature_gb: Annotated[
        float | None,
        Option(
            help="Disk for target features; what is beyond is computed anew in each batch.",
            show_default="no bound",
            rich_help_panel=_FILES,
        ),
    ] = None
    resume: Annotated[
        bool, Option("--resume", help="Go on from the checkpoint.", rich_help_panel=_FILES)
    ] = False
    licence: Annotated[
        str, Option(help="Licence of the target, for the provenance.", rich_help_panel=_FILES)
    ] = "unknown"

    def facts(self) -> dict[str, Any]:
        """By the names of a run."""
        work = self.run_dir or self.out.with_name(self.out.name + ".run")
        return {
            "data": tuple(self.data),
            "out": self.out,
            "export_hf": self.export_hf,
            "work": work,
            "features": self.feature_dir or work / "features",
            "feature_gb": float("inf") if self.feature_gb is None else self.feature_gb,
            "is_resumed": self.resume,
            "licence": self.licence,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFlags:
    """What is minimised; named as in `LossSettings`."""

    block_min: Annotated[
        int, Option(help="Shortest block of the cross mask.", rich_help_panel=_LOSS)
    ] = 2
    block_max: Annotated[
        int, Option(help="Longest block: the largest lag.", rich_help_panel=_LOSS)
    ] = 8
    prompt_weight: Annotated[
        float, Option(help="Weight of prompt positions.", rich_help_panel=_LOSS)
    ] = 0.5
    kl_weight: Annotated[
        float, Option(help="Of the divergence from the target's law.", rich_help_panel=_LOSS)
    ] = 1.0
    hard_weight: Annotated[
        float, Option(help="Of the next generated token's cross-entropy.", rich_help_panel=_LOSS)
    ] = 0.0
    hidden_weight: Annotated[
        float, Option(help="Of the distance to the target's state.", rich_help_panel=_LOSS)
    ] = 3.0
    unroll: Annotated[
        int,
        Option(
            help="Weigh positions by how far chains of this many tokens get; 0: alike.",
            rich_help_panel=_LOSS,
        ),
    ] = 0
    unroll_floor: Annotated[
        float, Option(help="Weight of what no chain reaches.", rich_help_panel=_LOSS)
    ] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFlags:
    """How long and how fast; named as in `Schedule`."""

    steps: Annotated[
        int | None, Option(help="Length of the run in steps.", rich_help_panel=_LENGTH)
    ] = None
    minutes: Annotated[
        float | None, Option(help="Length of the run in minutes.", rich_help_panel=_LENGTH)
    ] = None
    lr: Annotated[float, Option(help="Peak learning rate.", rich_help_panel=_LENGTH)] = 8e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlags:
    """What a step is; named as in `TrainSettings`."""

    batch_tokens: Annotated[
        int, Option(help="Tokens in a batch, padding included.", rich_help_panel=_LENGTH)
    ] = 4096
    weight_decay: Annotated[float, Option(help="Decay of matrices.", rich_help_panel=_LENGTH)] = (
        0.05
    )
    ema: Annotated[
        float,
        Option(
            help="Decay of the average of weights that is checked and exported; 0: none.",
            rich_help_panel=_LENGTH,
        ),
    ] = 0.0
    seed: Annotated[
        int, Option(help="Seed of data order and masks.", min=0, rich_help_panel=_LENGTH)
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags:
    """How often and on what the draft is checked."""

    export_minutes: Annotated[
        float, Option(help="Minutes between held-out checks.", rich_help_panel=_CHECKS)
    ] = 4.0
    heldout: Annotated[
        int, Option(help="Prompts held out for the checks.", min=1, rich_help_panel=_CHECKS)
    ] = 60
    patience: Annotated[
        int,
        Option(
            help="Checks without a longer acceptance that end the run; 0: never.",
            rich_help_panel=_CHECKS,
        ),
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFlags:
    """How a draft is trained."""

    loss: LossFlags
    length: LengthFlags
    step: StepFlags
    checks: CheckFlags

    def settings(self, precision: str) -> "TrainSettings":
        """Raises `TrainingError` for values out of range or at odds with each other."""
        from slipstream.train.config import LossSettings, Precision, Schedule, TrainSettings

        if precision not in list(Precision):
            raise TrainingError(f"the precision is {precision!r}, not bfloat16 or float32")
        return TrainSettings(
            Schedule(**asdict(self.length)),
            LossSettings(**asdict(self.loss)),
            **asdict(self.step),
            precision=Precision(precision),
            patience=self.checks.patience,
            num_heldout=self.checks.heldout,
            export_seconds=60 * self.checks.export_minutes,
        )


def _layers_read(text: str, *, is_none: bool) -> tuple[int, ...] | None:
    """From 19,28,29 to its numbers; None, for no text, stands for the target's last layer."""
    if text and is_none:
        raise TrainingError(f"--no-cross reads no layers, but --layers names {text}")
    if not text:
        return () if is_none else None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TrainingError(f"layers must be numbers with commas between, got {text!r}") from None
