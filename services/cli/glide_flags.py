"""The options of `slipstream train glide`, in groups. Loads no torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from slipstream.core.errors import TrainingError
from slipstream.options import option, required

if TYPE_CHECKING:
    from slipstream.train.config import TrainSettings
    from slipstream.train.launch import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFlags:
    """The draft to train."""

    PANEL: ClassVar[str] = "Draft"

    target: str = required("Target model: an alias, a path or a hub id.")
    layers: str = option("", "Target layers to read, as 19,28,29.", show_default="the last")
    no_cross: bool = option(False, "Read no target layers: a draft without cross-attention.")
    num_layers: int = option(1, "Layers of the draft, each with all cross-attentions.")
    head_size: int = option(8192, "Tokens in the trimmed head.")
    init_from: Path | None = option(
        None, "Weights to start from.", show_default="the target's layers"
    )

    def facts(self) -> dict[str, Any]:
        """Return these by the names of a run. Raises `TrainingError` for layers that can't be."""
        return {
            "target": self.target,
            "layers": _layers_read(self.layers, is_none=self.no_cross),
            "num_layers": self.num_layers,
            "head_size": self.head_size,
            "init_from": self.init_from,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFlags:
    """Files and directories."""

    PANEL: ClassVar[str] = "Files"

    data: tuple[Path, ...] = required(
        "JSON lines to train on, or a directory of shards; repeatable."
    )
    out: Path = required("Directory for the weights.")
    export_hf: Path | None = option(
        None,
        "Also write a --no-cross draft there, as a checkpoint that transformers loads.",
        show_default="nowhere",
    )
    run_dir: Path | None = option(
        None, "Directory for checkpoints and plots.", show_default="OUT.run"
    )
    feature_dir: Path | None = option(
        None,
        "Directory for target features, which several runs may share.",
        show_default="RUN_DIR/features",
    )
    feature_gb: float | None = option(
        None,
        "GB on disk for target features; the others are computed anew in each batch.",
        show_default="no bound",
    )
    resume: bool = option(False, "Continue from the checkpoint.")
    licence: str = option("unknown", "Licence of the target, for the provenance.")

    def facts(self) -> dict[str, Any]:
        """Return these by the names of a run."""
        work = self.run_dir or self.out.with_name(self.out.name + ".run")
        return {
            "data": self.data,
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
    """Terms of the loss; named as in `LossSettings`."""

    PANEL: ClassVar[str] = "Loss"

    block_min: int = option(2, "Shortest block of the cross mask.")
    block_max: int = option(8, "Longest block: the largest lag.")
    prompt_weight: float = option(0.5, "Weight of prompt positions.")
    kl_weight: float = option(1.0, "Weight of the divergence from the target's distribution.")
    hard_weight: float = option(0.0, "Weight of the next generated token's cross-entropy.")
    hidden_weight: float = option(3.0, "Weight of the distance to the target's hidden state.")
    unroll: int = option(0, "Weigh positions by the reach of chains of this many tokens; 0: alike.")
    unroll_floor: float = option(0.1, "Weight of positions that no chain reaches.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFlags:
    """Length and learning rate; named as in `Schedule`."""

    PANEL: ClassVar[str] = "Length and speed"

    steps: int | None = option(None, "Length of the run in steps.")
    minutes: float | None = option(None, "Length of the run in minutes.")
    lr: float = option(8e-4, "Peak learning rate.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlags:
    """Steps of the optimiser; named as in `TrainSettings`."""

    PANEL: ClassVar[str] = "Length and speed"

    batch_tokens: int = option(4096, "Tokens in a batch, padding included.")
    weight_decay: float = option(0.05, "Weight decay of matrices.")
    ema: float = option(
        0.0, "Decay of the average of weights that is checked and exported; 0: none."
    )
    seed: int = option(0, "Seed of data order and masks.", min=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags:
    """Checks of the draft on held-out prompts."""

    PANEL: ClassVar[str] = "Checks"

    export_minutes: float = option(4.0, "Minutes between held-out checks.")
    heldout: int = option(60, "Prompts held out for the checks.", min=1)
    patience: int = option(0, "Checks without a longer acceptance that end the run; 0: never.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFlags:
    """Everything that decides the result of a training."""

    loss: LossFlags
    length: LengthFlags
    step: StepFlags
    checks: CheckFlags

    def settings(self, precision: str) -> "TrainSettings":
        """Return the settings. Raises `TrainingError` for values that can't be."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamFlags:
    """Processes, threads and devices that compute."""

    PANEL: ClassVar[str] = "Machine"

    device: str = option("cpu", "cpu, cuda or cuda:N.")
    precision: str = option("bfloat16", "Type of matrix products: bfloat16 or float32.")
    threads: int | None = option(
        None, "CPU threads of each process.", min=1, show_default="torch's choice"
    )
    nproc: int = option(
        1,
        "Processes on this machine, with --device cuda one for each GPU; under torchrun, "
        "leave it at 1.",
        min=1,
    )
    ray: bool = option(False, "Train in Ray workers, with --device cuda one for each GPU.")
    ray_workers: int | None = option(None, "Number of Ray workers; default: 1.", min=1)

    def start(self, work: "Work", directory: Path) -> None:
        """Run `work` in all processes; Ray keeps its records below `directory`."""
        from slipstream.train.launch import run_team
        from slipstream.train.ray_team import run_ray_team

        if self.ray_workers is not None and not self.ray:
            raise TrainingError("--ray-workers needs --ray")
        if not self.ray:
            run_team(work, device=self.device, num_processes=self.nproc)
            return
        if self.nproc > 1 or self.device not in ("cpu", "cuda"):
            raise TrainingError("Ray places its workers itself: drop --nproc and GPU numbers")
        num_workers, has_gpus = self.ray_workers or 1, self.device == "cuda"
        place = directory / "ray"
        run_ray_team(work, num_workers=num_workers, has_gpus=has_gpus, directory=place)


def _layers_read(text: str, *, is_none: bool) -> tuple[int, ...] | None:
    """Return the numbers of 19,28,29; None, for no text, stands for the target's last layer."""
    if text and is_none:
        raise TrainingError(f"--no-cross reads no layers, but --layers names {text}")
    if not text:
        return () if is_none else None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TrainingError(f"layers must be numbers with commas between, got {text!r}") from None
