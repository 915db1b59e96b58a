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

_STATE = "state.json"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(slots=True)
class RunState:
    """How far a run is. `epoch` and `batch` name the next batch; batches and masks are functions
    of (seed, epoch, batch), so no generator state is needed."""

    fingerprint: str
    step: int = 0
    epoch: int = 0
    batch: int = 0
    num_tokens: int = 0
    elapsed_seconds: float = 0.0
    best_score: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: RunState
) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    part, old = directory.with_suffix(".part"), directory.with_suffix(".old")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write_tensors({n: v.detach() for n, v in model.state_dict().items()}, part / _MODEL)
    write_tensors(_optimizer_tensors(model, optimizer), part / _OPTIMIZER)
    (part / _STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        os.replace(directory, old)
    os.replace(part, directory)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str
) -> RunState:
    """Restore model and optimiser; TrainingError when there is none or it is of another run."""
    path = directory / _STATE
    if not path.is_file():
        raise TrainingError(f"{directory} holds no checkpoint to resume from")
    state = RunState(**json.loads(path.read_text(encoding="utf-8")))
    if state.fingerprint != fingerprint:
        raise TrainingError(
            f"the checkpoint in {directory} was made with other data or settings, start afresh"
        )
    model.load_state_dict(read_tensors(directory / _MODEL))
    saved = read_tensors(directory / _OPTIMIZER)
    for name, parameter in model.named_parameters():
        keys = [key for key in saved if key.rsplit("/", 1)[0] == name]
        optimizer.state[parameter] = {key.rsplit("/", 1)[1]: saved[key] for key in keys}
    return state


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
