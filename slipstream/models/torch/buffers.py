"""Keys and values of models that torch computes, where their device is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.models.dtypes import Array
from slipstream.models.torch.arrays import as_array, as_tensor, torch_dtype


class TorchBuffers:
    """`Buffers` of tensors on one device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def new(self, shape: Sequence[int], dtype: "np.dtype[Any]", *, is_filled: bool = False) -> Any:
        return torch.empty(*shape, dtype=torch_dtype(dtype), device=self._device)

    def write(self, buffer: Tensor, slots: slice, values: Array) -> None:
        buffer[:, slots].copy_(as_tensor(values.copy()))

    @torch.inference_mode()
    def clear(self, buffer: Tensor, slots: slice) -> None:
        buffer[:, slots].zero_()

    @torch.inference_mode()
    def copy(self, buffer: Tensor, source: Sequence[int], into: Sequence[int]) -> None:
        chosen = buffer.index_select(1, torch.tensor(source, device=self._device))
        buffer.index_copy_(1, torch.tensor(into, device=self._device), chosen)

    def read(self, buffer: Tensor, slots: Array) -> Tensor:
        return buffer.index_select(1, torch.from_numpy(slots).to(self._device))

    def on_host(self, values: Tensor) -> Array:
        return as_array(values)
