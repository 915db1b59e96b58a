"""Files of a training run: its checkpoint, where its weights come from, and plots of its course.

A run continues exactly where it stopped. Files are safetensors and JSON, no pickle.
"""

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import TrainingError
from slipstream.models.glide.glide_files import read_tensors, write_tensors
from slipstream.plots import save_plot
from slipstream.train.data import DataFile, write_json

_STATE = "state.json"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_AVERAGE = "average.safetensors"
PROVENANCE_NAME = "provenance.json"
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


class WeightAverage:
    """Exponential moving average of a module's parameters; decay 0 follows them exactly."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._decay = decay
        self.tensors = {name: value.detach().clone() for name, value in self._parameters.items()}

    def update(self, step: int) -> None:
        """Include the parameters after `step` steps, counted from 1.

        Early on the average is of few steps, lest the first weights linger: decay is at most
        step / (step + 9).
        """
        decay = min(self._decay, step / (step + 9))
        latest = [value.detach() for value in self._parameters.values()]
        torch._foreach_lerp_(list(self.tensors.values()), latest, 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore an average that was saved."""
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the module hold its average in this context; afterwards its own weights again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, value in self._parameters.items():
            value.data, self.tensors[name] = self.tensors[name], value.data


@dataclass(slots=True)
class RunState:
    """Progress of a run. `epoch` and `batch` name the next batch; batches and masks are functions
    of (seed, epoch, batch), so no generator state is needed. `losses` and `history` are the reports
    and the held-out checks so far, `num_stale` how many checks the best one lies back."""

    fingerprint: str
    step: int = 0
    epoch: int = 0
    batch: int = 0
    num_tokens: int = 0
    elapsed_seconds: float = 0.0
    best_length: float = 0.0
    num_stale: int = 0
    losses: list[dict[str, float]] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunWeights:
    """All tensors of a run: the model, its optimiser and the average of its weights."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: WeightAverage


def save_checkpoint(directory: Path, weights: RunWeights, state: RunState) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    part, old = directory.with_suffix(".part"), directory.with_suffix(".old")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model = {name: value.detach() for name, value in weights.model.state_dict().items()}
    write_tensors(model, part / _MODEL)
    write_tensors(_optimizer_tensors(weights), part / _OPTIMIZER)
    write_tensors(weights.average.tensors, part / _AVERAGE)
    (part / _STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        os.replace(directory, old)
    os.replace(part, directory)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(directory: Path, weights: RunWeights, *, fingerprint: str) -> RunState:
    """Restore all tensors in place; TrainingError when there is none or it is of another run."""
    path = directory / _STATE
    if not path.is_file():
        raise TrainingError(f"{directory} holds no checkpoint to resume from")
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("fingerprint") != fingerprint:
        raise TrainingError(
            f"the checkpoint in {directory} was made with other data or settings, start afresh"
        )
    weights.model.load_state_dict(read_tensors(directory / _MODEL))
    weights.average.load(read_tensors(directory / _AVERAGE))
    saved = read_tensors(directory / _OPTIMIZER)
    for name, parameter in weights.model.named_parameters():
        entries = {key: value for key, value in saved.items() if key.rsplit("/", 1)[0] == name}
        weights.optimizer.state[parameter] = {
            key.rsplit("/", 1)[1]: value.to(parameter.device) for key, value in entries.items()
        }
    return RunState(**record)


def _optimizer_tensors(weights: RunWeights) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in weights.model.named_parameters()
        for key, value in weights.optimizer.state.get(parameter, {}).items()
    }


def environment() -> dict[str, str]:
    """Return the versions of what computed the weights."""
    packages = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}


def write_provenance(path: Path, *, command: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write a provenance file, whole or not at all."""
    record = {"command": " ".join(command), "environment": environment(), **facts}
    write_json(path, record)


def add_facts(directory: Path, facts: Mapping[str, Any]) -> None:
    """Add to the provenance of the weights in `directory`."""
    record = read_provenance(directory)
    command = record.pop("command").split(" ")
    write_provenance(directory / PROVENANCE_NAME, command=command, facts={**record, **facts})


def read_provenance(directory: Path) -> Any:
    """Return the provenance of the weights in `directory`; None where there is none."""
    path = directory / PROVENANCE_NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def data_facts(data: DataFile) -> dict[str, Any]:
    """Return name, hash and sizes of a data file."""
    return {
        "file": data.name,
        "sha256": data.sha256,
        "num_documents": len(data.documents),
        "num_tokens": data.num_tokens,
        "num_generated_tokens": data.num_generated,
        "num_skipped_documents": data.num_skipped,
    }


def draw_curves(directory: Path, state: RunState) -> None:
    """Write loss.png and acceptance.png: the loss, and what chains survive on held-out text."""

    def loss(axes: Any) -> None:
        axes.plot([at["step"] for at in state.losses], [at["loss"] for at in state.losses])

    def acceptance(axes: Any) -> None:
        steps = [at["step"] for at in state.history]
        depths = [key for key in state.history[0] if key.startswith("depth_")] if steps else []
        for number, key in enumerate(depths, start=1):
            rates = [at[key] for at in state.history]
            axes.plot(steps, rates, marker=".", label=f"{number} accepted")

    save_plot(directory / "loss.png", loss, title="Training loss", x="step", y="loss")
    save_plot(
        directory / "acceptance.png",
        acceptance,
        title="Held-out chains that get so far",
        x="step",
        y="share of chains",
    )
