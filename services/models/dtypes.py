"""Element types of weights by name, and which of them this device multiplies fastest."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from slipstream.core.errors import InvalidRequest
from slipstream.models.machine import Measurements, best_seconds, this_machine
from slipstream.models.native.library import has_kernels
from slipstream.models.numerics.linears import PackedLinear

_LOG = logging.getLogger("slipstream.models")

AUTO = "auto"
DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}

_CANDIDATES = ("bfloat16", "float32")
"""What `auto` chooses from on a CPU: models are trained in the former, the latter is always exact
enough. In float16 some models overflow."""
_ROWS = (1, 8, 32)
"""Batched tokens of the products that are timed: a plain round's, a small tree's, a prompt's."""
_SHAPE = (2048, 1024)
_COPIES = 4
"""Weights in turn, so that they come from memory as those of a model do."""
_CLEARLY = 1.1
"""How much faster float32 must be for twice the memory."""
_SLOW = 1.5
"""How many times slower in torch a configured dtype may be before a warning is logged. Native
code multiplies either of `_CANDIDATES` as fast as memory allows."""


def choose_dtype(
    name: str, device: torch.device, *, native: bool = False, machine: Measurements | None = None
) -> torch.dtype:
    """Return the dtype of this name; `auto` is the one that the device multiplies fastest.

    Where `native` code computes, `auto` is bfloat16 on every CPU: it is the least to read, and
    machines are alike. Logs a choice by timing, and warns of a dtype that is slow here. Raises
    `InvalidRequest` for an unknown one, or one that the device can't multiply.
    """
    if name != AUTO and name not in DTYPES:
        raise InvalidRequest(f"the dtype is {name!r}, but must be one of auto, {', '.join(DTYPES)}")
    if device.type != "cpu":
        return _on_device(name, device)
    if native and name in (AUTO, *_CANDIDATES):
        return DTYPES.get(name, torch.bfloat16)
    times = _times(machine or this_machine())
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
    """Once in a process, however often the dtype is chosen."""
    _LOG.warning("dtype %s is %s times slower than %s on this CPU: use auto", name, factor, fastest)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that `choose_dtype` has for a dtype."""
    return str(dtype).removeprefix("torch.")


def _on_device(name: str, device: torch.device) -> torch.dtype:
    if name == AUTO:
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        name = "bfloat16" if has_bfloat16 else "float16"
        _LOG.info("dtype %s, which %s multiplies fastest", name, device)
    return DTYPES[name]


def _times(machine: Measurements) -> dict[str, Any]:
    """Seconds of the timed products by dtype; None for one that can't be multiplied."""
    times: dict[str, Any] = machine.recall("dtype_seconds", _measure, is_valid=_are_times)
    return times


def _measure() -> dict[str, float | None]:
    times: dict[str, float | None] = dict.fromkeys(DTYPES)
    products = {}
    for name, dtype in DTYPES.items():
        try:
            F.linear(torch.ones(2, 32, dtype=dtype), torch.ones(32, 32, dtype=dtype))
        except RuntimeError:
            continue
        weight = torch.full(_SHAPE, 0.01, dtype=dtype)
        products[name] = [PackedLinear(weight.clone()) for _ in range(_COPIES)]
    for rows in _ROWS:
        runs = [partial(_multiply, each, rows, DTYPES[name]) for name, each in products.items()]
        for name, seconds in zip(products, best_seconds(runs), strict=True):
            times[name] = (times[name] or 0.0) + seconds
    return times


def _multiply(products: Sequence[PackedLinear], rows: int, dtype: torch.dtype) -> None:
    x = torch.full((rows, _SHAPE[1]), 0.01, dtype=dtype)
    for product in products:
        product(x)


def _fastest(times: Mapping[str, Any]) -> str:
    half, whole = (times[name] for name in _CANDIDATES)
    return "float32" if half is None or half > _CLEARLY * whole else "bfloat16"


def _are_times(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(DTYPES) or value["float32"] is None:
        return False
    return all(at is None or (isinstance(at, float) and at > 0) for at in value.values())


def _told(times: Mapping[str, Any]) -> str:
    known = {name: at for name, at in times.items() if at is not None}
    return ", ".join(f"{name} {1000 * at:.1f} ms" for name, at in known.items())
