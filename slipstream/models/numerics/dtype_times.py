"""Times of torch's products by dtype, to choose one for models that torch computes on a CPU."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from slipstream.models.cores import start_torch
from slipstream.models.machine import Measurements, best_seconds
from slipstream.models.numerics.linears import PackedLinear
from slipstream.models.torch_arrays import TORCH_DTYPES

_ROWS = (1, 8, 32)
"""Batched tokens of the products that are timed: a plain round's, a small tree's, a prompt's."""
_SHAPE = (2048, 1024)
_COPIES = 4
"""Weights in turn, so that they come from memory as those of a model do."""


def dtype_times(machine: Measurements) -> dict[str, Any]:
    """Return seconds of the timed products by dtype; None for one that can't be multiplied."""
    times: dict[str, Any] = machine.recall("dtype_seconds", _measure, is_valid=_are_times)
    return times


def _measure() -> dict[str, float | None]:
    start_torch()
    times: dict[str, float | None] = dict.fromkeys(TORCH_DTYPES)
    products = {}
    for name, dtype in TORCH_DTYPES.items():
        try:
            F.linear(torch.ones(2, 32, dtype=dtype), torch.ones(32, 32, dtype=dtype))
        except RuntimeError:
            continue
        weight = torch.full(_SHAPE, 0.01, dtype=dtype)
        products[name] = [PackedLinear(weight.clone()) for _ in range(_COPIES)]
    for rows in _ROWS:
        runs = [
            partial(_multiply, each, rows, TORCH_DTYPES[name]) for name, each in products.items()
        ]
        for name, seconds in zip(products, best_seconds(runs), strict=True):
            times[name] = (times[name] or 0.0) + seconds
    return times


def _multiply(products: Sequence[PackedLinear], rows: int, dtype: torch.dtype) -> None:
    x = torch.full((rows, _SHAPE[1]), 0.01, dtype=dtype)
    for product in products:
        product(x)


def _are_times(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(TORCH_DTYPES) or value["float32"] is None:
        return False
    return all(time is None or (isinstance(time, float) and time > 0) for time in value.values())
