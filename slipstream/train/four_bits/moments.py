"""Second moments of the inputs of a draft's linears, on text that its target wrote."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_weights import HEAD
from slipstream.train.features import TrainBatch
from slipstream.train.glide import Frozen, generated_positions, lag_mask, states

_LAGS = (0, 1, 3)
"""Numbers of newest target keys that are hidden, each in a pass of its own."""
_SHARED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Linears, and those that stand for them, because both have the same input."""


def input_of(name: str) -> str:
    """Return the name of the parameter that stands for all of one input with that of `name`."""
    module, _, kind = name.rpartition(".")
    parent, _, linear = module.rpartition(".")
    return f"{parent}.{_SHARED[linear]}.{kind}" if linear in _SHARED else name


class InputMoments:
    """Sums of x x^T over the inputs x of a draft's linears and of its head, by `input_of`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, inputs: Tensor) -> None:
        """Add inputs [n, d] of a parameter."""
        found = (inputs.T @ inputs).cpu().double()
        self._sums[name] = self._sums[name] + found if name in self._sums else found
        self._counts[name] = self._counts.get(name, 0) + len(inputs)

    def mean(self, name: str) -> Tensor:
        """Return E[x x^T] of the inputs of a parameter, [d, d] float64 on the CPU."""
        source = input_of(name)
        return self._sums[source] / self._counts[source]


@torch.inference_mode()
def input_moments(model: GlideModel, frozen: Frozen, batches: Iterable[TrainBatch]) -> InputMoments:
    """Return the moments of a float32 draft's inputs at the generated positions of `batches`, at
    several lags within those that it was trained for."""
    moments = InputMoments()
    longest = max(1, model.config.max_lag)
    for batch in batches:
        keep = generated_positions(batch).flatten()
        with _inputs_to(moments, model, keep):
            for lag in (lag for lag in _LAGS if lag < longest):
                mask = lag_mask(batch.ids.shape[1], lag, device=batch.ids.device)
                final = states(model, frozen, batch, mask.expand(len(batch.ids), -1, -1, -1))
                moments.add(HEAD, final.flatten(0, 1)[keep])
    return moments


@contextmanager
def _inputs_to(moments: InputMoments, model: GlideModel, keep: Tensor) -> Iterator[None]:
    """Have every forward of `model` add its linears' inputs at the positions that `keep` marks."""

    def add(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        moments.add(name, inputs[0].flatten(0, 1)[keep])

    linears = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    hooks = [
        module.register_forward_pre_hook(partial(add, name))
        for name, module in linears.items()
        if input_of(name) == name
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
