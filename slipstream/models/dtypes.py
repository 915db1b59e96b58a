"""Element types of weights by name, and which of them this device multiplies fastest."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from slipstream.core.errors import InvalidRequest
from slipstream.models.machine import Measurements, this_machine
from slipstream.models.native.library import has_kernels

_LOG = logging.getLogger("slipstream.models")

AUTO = "auto"
Q8 = "q8"
"""Matrices in blocks of 32 8-bit numbers with a scale (Q8_0), by native code alone; embeddings,
keys and values are bfloat16."""
CPU = "cpu"
Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FLOAT32: np.dtype[Any] = np.dtype(np.float32)
DTYPES: Mapping[str, np.dtype[Any]] = {
    "bfloat16": BFLOAT16,
    "float16": np.dtype(np.float16),
    "float32": FLOAT32,
}

_CANDIDATES = ("bfloat16", "float32")
"""Choices of `auto` on a CPU: models are trained in the former, the latter is always exact
enough. In float16 some models overflow."""
_CLEARLY = 1.1
"""Least speedup by float32 that is worth twice the memory."""
_SLOW = 1.5
"""Slowdown in torch from which on a warning is logged for a configured dtype. Native code
multiplies either of `_CANDIDATES` as fast as memory allows."""


def choose_dtype(
    name: str, device: str, *, native: bool = False, machine: Measurements | None = None
) -> np.dtype[Any]:
    """Return the dtype of this name; `auto` is the one that the device multiplies fastest.

    Where `native` code computes, `auto` is bfloat16 on every CPU: it is the least to read, and
    machines are alike. Logs a choice by timing, and warns of a dtype that is slow here. Raises
    `InvalidRequest` for an unknown one, or one that the device can't multiply.
    """
    if name not in (AUTO, Q8, *DTYPES):
        known = ", ".join((AUTO, *DTYPES, Q8))
        raise InvalidRequest(f"the dtype is {name!r}, but must be one of {known}")
    if name == Q8 and not (native and device == CPU):
        raise InvalidRequest("the dtype is q8, which only native code on a CPU computes; use auto")
    if device != CPU:
        return _on_device(name, device)
    if native and name in (AUTO, Q8, *_CANDIDATES):
        return DTYPES.get(name, BFLOAT16)
    from slipstream.models.numerics.dtype_times import dtype_times

    times = dtype_times(machine or this_machine())
    fastest = _fastest(times)
    if name == AUTO:
        _LOG.info("dtype %s, chosen by timing: %s", fastest, _told(times))
        return DTYPES[fastest]
    if times[name] is None:
        raise InvalidRequest(f"the dtype is {name}, which this CPU can't multiply; use {fastest}")
    factor = times[name] / times[fastest]
    if factor > _SLOW and not (name in _CANDIDATES and has_kernels()):
        _warn(name, fastest, f"{factor:.1f}")
    return DTYPES[name]


@cache
def _warn(name: str, fastest: str, factor: str) -> None:
    """Warn once per process."""
    _LOG.warning("dtype %s is %s times slower than %s on this CPU: use auto", name, factor, fastest)


def _on_device(name: str, device: str) -> np.dtype[Any]:
    if name == AUTO:
        import torch

        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        name = "bfloat16" if has_bfloat16 else "float16"
        _LOG.info("dtype %s, which %s multiplies fastest", name, device)
    return DTYPES[name]


def _fastest(times: Mapping[str, Any]) -> str:
    half, whole = (times[name] for name in _CANDIDATES)
    return "float32" if half is None or half > _CLEARLY * whole else "bfloat16"


def _told(times: Mapping[str, Any]) -> str:
    known = {name: seconds for name, seconds in times.items() if seconds is not None}
    return ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in known.items())
