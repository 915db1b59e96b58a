"""Proof that a function of tensors looks at no value on the host, on a machine without a GPU.

It is run twice: on tensors that hold no values at all, where whatever needs one raises, and on
real ones under a mode that refuses the operations that would make a GPU's host wait.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_LOOKS = (
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
    "aten::masked_select",
    "aten::nonzero",
    "aten::nonzero_numpy",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::repeat_interleave.Tensor",
)


class LookedError(Exception):
    """A value was asked for on the host."""


class NoLooks(TorchDispatchMode):
    """Refuses the operations whose result, or its shape, depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        base = name.split(".")[0]
        leaves = tree_leaves((args, kwargs or {}))
        by_mask = base in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
        )
        if name in _LOOKS or base in _LOOKS or by_mask:
            raise LookedError(f"{name} looks at a value")
        assert all(not isinstance(leaf, Tensor) or leaf.device.type == "cpu" for leaf in leaves)
        return func(*args, **(kwargs or {}))


def check(body: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The body's result; raises where it looks at a value."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        body(*tree_map_only(Tensor, mode.from_tensor, inputs))
    with NoLooks():
        return body(*inputs)
