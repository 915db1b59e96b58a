"""Element types of weights by name."""

import logging
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from slipstream.core.errors import InvalidRequest

_LOG = logging.getLogger("slipstream.models")

AUTO = "auto"
Q8 = "q8"
"""Matrices in blocks of 32 8-bit numbers with a scale (Q8_0), by native code alone; embeddings,
keys and values are bfloat16."""
FP8 = "fp8"
"""Linear layers in 8-bit floats (E4M3) with a scale for each output, by GPUs that multiply them;
all else is bfloat16."""
_FP8_CAPABILITY = (8, 9)
CPU = "cpu"
Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FLOAT32: np.dtype[Any] = np.dtype(np.float32)
DTYPES: Mapping[str, np.dtype[Any]] = {
    "bfloat16": BFLOAT16,
    "float16": np.dtype(np.float16),
    "float32": FLOAT32,
}


def choose_dtype(name: str, device: str, *, native: bool = False) -> np.dtype[Any]:
    """Return the dtype of this name.

    Where `native` code computes, `auto` is bfloat16: it is the least to read. Where torch does, it
    is float32 on a CPU, all of which multiply it well, and what a device multiplies fastest.
    Raises `InvalidRequest` for an unknown one.
    """
    if name not in (AUTO, Q8, FP8, *DTYPES):
        known = ", ".join((AUTO, *DTYPES, Q8, FP8))
        raise InvalidRequest(f"the dtype is {name!r}, but must be one of {known}")
    if name == Q8 and not (native and device == CPU):
        raise InvalidRequest("the dtype is q8, which only native code on a CPU computes; use auto")
    if device != CPU:
        return _on_device(name, device)
    if name == FP8:
        raise InvalidRequest("the dtype is fp8, which GPUs alone multiply; use auto")
    return DTYPES.get(name, BFLOAT16 if native else FLOAT32)


def _on_device(name: str, device: str) -> np.dtype[Any]:
    import torch

    if name == FP8:
        found = torch.cuda.get_device_capability(device)
        if found < _FP8_CAPABILITY:
            raise InvalidRequest(
                f"the dtype is fp8, but {device} has the compute capability {found[0]}.{found[1]},"
                " and 8.9 is the least that multiplies it; use auto"
            )
        return BFLOAT16
    if name == AUTO:
        has_bfloat16 = torch.cuda.get_device_capability(device) >= (8, 0)
        name = "bfloat16" if has_bfloat16 else "float16"
        _LOG.info("dtype %s, which %s multiplies fastest", name, device)
    return DTYPES[name]
