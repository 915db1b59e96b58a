"""Keys and values of models that torch computes, where their device is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.models.dtypes import Array
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch_arrays import as_array, torch_dtype


def new_tensor(shape: Sequence[int], dtype: "np.dtype[Any]", device: str) -> Tensor:
    """Return memory for keys and values on a device."""
    return torch.empty(*shape, dtype=torch_dtype(dtype), device=device)


class TorchKvPool(KvPool):
    """`KvPool` with tensors on the layout's device as buffers."""

    def on_host(self, values: Tensor) -> Array:
        """See `KvPool.on_host`."""
        return as_array(values)

    def slots(self, pages: Sequence[int]) -> Tensor:
        """See `KvPool.slots`."""
        return torch.from_numpy(super().slots(pages)).to(self.layout.device)

    def _new_buffer(self, shape: tuple[int, ...]) -> Tensor:
        return new_tensor(shape, self.layout.dtype, self.layout.device)

    @torch.inference_mode()
    def _copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        device = self.layout.device
        from_slots = torch.tensor(source, device=device)
        to_slots = torch.tensor(into, device=device)
        for buffer in self._layers:
            buffer.index_copy_(1, to_slots, buffer.index_select(1, from_slots))

    @torch.inference_mode()
    def _clear(self, slots: slice) -> None:
        for buffer in self._layers:
            buffer[:, slots].zero_()
