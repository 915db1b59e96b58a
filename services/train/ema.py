"""A moving average of weights, which checks and exports use. Knows nothing of training steps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average of a module's parameters; decay 0 follows them exactly."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._decay = decay
        self.tensors = {name: value.detach().clone() for name, value in self._parameters.items()}

    def update(self, step: int) -> None:
        """Take in the parameters after `step` steps, counted from 1.

        Early on the average is of few steps, lest the first weights linger: decay is at most
        step / (step + 9).
        """
        decay = min(self._decay, step / (step + 9))
        latest = [value.detach() for value in self._parameters.values()]
        torch._foreach_lerp_(list(self.tensors.values()), latest, 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up an average that was saved."""
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within, the module holds its average; afterwards its own weights again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, value in self._parameters.items():
            value.data, self.tensors[name] = self.tensors[name], value.data
