"""A training run on disk, to go on exactly where it stopped: safetensors and JSON, no pickle.

Knows nothing of data or losses.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from slipstream.core.errors import TrainingError
from slipstream.models.glide_weights import read_tensors, write_tensors
from slipstream.train.ema import WeightAverage

_STATE = "state.json"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_AVERAGE = "average.safetensors"


@dataclass(slots=True)
class RunState:
    """How far a run is. `epoch` and `batch` name the next batch; batches and masks are functions
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
class Weights:
    """All tensors of a run: the model, its optimiser and the average of its weights."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: WeightAverage


def save_checkpoint(directory: Path, weights: Weights, state: RunState) -> None:
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


def load_checkpoint(directory: Path, weights: Weights, *, fingerprint: str) -> RunState:
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


def _optimizer_tensors(weights: Weights) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in weights.model.named_parameters()
        for key, value in weights.optimizer.state.get(parameter, {}).items()
    }
