"""Memory of keys and values: how it is allocated, written, copied and read on the host."""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from slipstream.models.dtypes import CPU, Array


class Buffers:
    """Allocator of buffers [2 * kv_heads, slots, head_dim], and what is done with them: of arrays
    on the host, whose memory is mapped and not allocated by numpy, which asks for huge pages: with
    heads far apart a short text would touch hundreds of MB of them. What is never touched takes
    no memory."""

    def new(self, shape: Sequence[int], dtype: "np.dtype[Any]", *, is_filled: bool = False) -> Any:
        """Return a new buffer; one that `is_filled` soon has huge pages, where there are any: they
        are there in a fifth of the time."""
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
        if is_filled and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype).reshape(shape)

    def write(self, buffer: Any, slots: slice, values: Array) -> None:
        """Write keys and values [2 * kv_heads, n, head_dim] of the host."""
        buffer[:, slots] = values

    def clear(self, buffer: Any, slots: slice) -> None:
        """Fill slots with zeros."""
        buffer[:, slots] = 0

    def copy(self, buffer: Any, source: Sequence[int], into: Sequence[int]) -> None:
        """Copy slots; all are read before any is written."""
        buffer[:, into] = buffer[:, source]

    def read(self, buffer: Any, slots: Array) -> Any:
        """Return a copy of slots, where the buffer is."""
        return buffer[:, slots]

    def on_host(self, values: Any) -> Array:
        """Return keys and values of a buffer as an array on the host."""
        found: Array = values
        return found


HOST = Buffers()


def buffers_for(device: str) -> Buffers:
    """Return the allocator of a device, as torch names it."""
    if device == CPU:
        return HOST
    from slipstream.models.torch.arrays import TorchBuffers

    return TorchBuffers(device)
