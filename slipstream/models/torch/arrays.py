"""Torch beside numpy and native code: arrays over the same memory, dtypes, threads, KV buffers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_char
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.config import set_default_variables
from slipstream.models.cuda.graphs import sent
from slipstream.models.dtypes import DTYPES, Array
from slipstream.models.kv.pool import Buffers
from slipstream.models.threads import num_threads, place

TORCH_DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}

_CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
"""Settings of cuBLAS under which it splits no sum by the number of rows."""
_PARALLEL = 1 << 20
"""Numbers that torch adds up with all of its threads."""
Rows = list[Tensor]
"""Rows [R, n], or such in 8-bit floats and the scale [R, 1] of each, float32."""
LARGEST, LEAST = 448.0, 1e-12
"""The largest 8-bit float, and the least that the largest number of a row counts as."""


def start_torch() -> None:
    """Let torch compute with as many threads as native code, on the same cores where they stay,
    and CUDA's products with steady sums.

    Before it computes on this thread: what it starts later would share the core of this one.
    """
    set_default_variables(_CUBLAS)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_num_threads(num_threads())
    place(lambda: torch.ones(_PARALLEL).sum())


def torch_dtype(dtype: "np.dtype[Any] | torch.dtype") -> torch.dtype:
    """Return torch's dtype of numpy's."""
    return dtype if isinstance(dtype, torch.dtype) else TORCH_DTYPES[dtype.name]


def numpy_dtype(dtype: torch.dtype) -> "np.dtype[Any]":
    """Return numpy's dtype of torch's."""
    return DTYPES[str(dtype).removeprefix("torch.")]


def as_tensor(values: "Array | Tensor") -> Tensor:
    """Return a tensor over the memory of an array on the host; a tensor as it is."""
    if isinstance(values, Tensor):
        return values
    if values.dtype.name == "bfloat16":  # which torch's conversion does not know
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def as_array(values: "Array | Tensor") -> Array:
    """Return an array over the memory of a tensor on the host, or a copy of one elsewhere; an array
    as it is."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view(DTYPES["bfloat16"])
    found: Array = values.numpy()
    return found


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor over memory of the host, which the caller keeps."""
    size = math.prod(shape) * dtype.itemsize
    return torch.frombuffer((c_char * size).from_address(address), dtype=dtype).view(*shape)


def rounded(rows: Tensor) -> Rows:
    """Return rows [R, n] in 8-bit floats."""
    scales = rows.abs().amax(1, keepdim=True).float().clamp(min=LEAST) / LARGEST
    return [(rows / scales).to(torch.float8_e4m3fn), scales]


def new_rows(like: Tensor, size: int, rounds: bool) -> Rows:
    """Return memory for rows [R, size] of the dtype of `like` [R, ...], or in 8-bit floats."""
    codes = like.new_empty(len(like), size, dtype=torch.float8_e4m3fn if rounds else None)
    return [codes, like.new_empty(len(like), 1, dtype=torch.float32)] if rounds else [codes]


class TorchBuffers(Buffers):
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
    def copy(self, buffers: Iterable[Tensor], source: Sequence[int], into: Sequence[int]) -> None:
        slots = sent(torch.tensor([source, into]), self._device)
        for buffer in buffers:
            buffer.index_copy_(1, slots[1], buffer.index_select(1, slots[0]))

    def read(self, buffer: Tensor, slots: Array) -> Tensor:
        return buffer.index_select(1, torch.from_numpy(slots).to(self._device))

    def on_host(self, values: Tensor) -> Array:
        return as_array(values)
