"""A graph of the simulated GPU: the operators of a capture, and their storages.
A replay runs the recorded operators again on the same storages, and no Python of the body. The
guard refuses what a capture refuses; a replay finds a pointer whose memory is gone."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.cuda.tensors import leaves, name_of, replaced

_READS = {"equal", "is_nonzero", "allclose", "item", "_local_scalar_dense"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "__getitem__", "__setitem__"}
_SHAPED = {"nonzero", "repeat_interleave"}
_RANDOM = {"rand", "randn", "randint", "randperm", "normal"}
_LAUNCHES = {"attend": 2, "attend_others": 2, "draw": 3, "edit": 3, "truncate": 3}
_LAUNCHES |= {"read_chain": 2}
"""Operators that are more than one kernel."""
_SURE = {"scaled_dot_product_attention"}
"""Operators that would draw random numbers with other arguments than are ever given."""


class GpuError(Exception):
    """Something that a GPU refuses, or that gives wrong numbers there."""


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def signature(func: object, given: Any, out: Any) -> Any:
    """Return what two runs of a body must have in common of a kernel."""
    forms = [(tuple(at.shape), at.stride(), at.dtype) for at in leaves((given, out))]
    return name_of(func), tuple(forms)


@dataclass(frozen=True, slots=True)
class _Kernel:
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    fresh: list[Tensor | None]
    """Results by place; None for one that is a view of an operand."""


class Graph:
    """Operators as a capture saw them."""

    def __init__(self) -> None:
        self.signatures: list[Any] = []
        self.num_kernels = 0
        """Kernels that a GPU would launch: operators that are no views."""
        self.private: set[int] = set()
        """Storages that the capture allocated."""
        self._kernels: list[_Kernel] = []
        self._outside: dict[int, Tensor] = {}
        self._num_own: Counter[int] = Counter()

    def check(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise `GpuError` for what a capture refuses."""
        name, tags = name_of(func), getattr(func, "tags", ())
        if name in _READS or torch.Tag.data_dependent_output in tags:
            raise GpuError(f"in a capture, {name} reads values on the host")
        if name in INDEXING:
            index = args[1] if isinstance(args[1], tuple) else [args[1]]
            if name.endswith("item__") and any(isinstance(at, list) for at in index):
                raise GpuError(f"in a capture, {name} copies between devices")
            is_shaped = any(at.dtype in (torch.bool, torch.uint8) for at in leaves(args[1]))
        elif name in _SHAPED:
            is_shaped = len(leaves(args)) > 1 or name == "nonzero"
        else:
            is_shaped = torch.Tag.dynamic_output_shape in tags
        if is_shaped:
            raise GpuError(f"in a capture, the shape of {name} depends on values")
        is_sure = name in _SURE or (name == "dropout" and args[2] is False)
        is_random = name in _RANDOM or (torch.Tag.nondeterministic_seeded in tags and not is_sure)
        if is_random and kwargs.get("generator") is None:
            raise GpuError(f"in a capture, {name} draws from the default generator")

    def record(self, func: Any, given: Any, out: Any) -> None:
        """Take an operator in, its results in memory of the graph's."""
        self.signatures.append(signature(func, given, out))
        used = {storage_of(leaf) for leaf in leaves(given)}
        fresh = [None if storage_of(at) in used else at for at in leaves(out)]
        name, is_new = name_of(func), any(at is not None for at in fresh)
        is_view = not is_new and (not name.endswith("_") or name == "__getitem__")
        self.num_kernels += 0 if is_view or "empty" in name else _LAUNCHES.get(name, 1)
        self.private |= {storage_of(at) for at in fresh if at is not None}
        args, kwargs = replaced(given, self._held)
        self._kernels.append(_Kernel(func, args, kwargs, fresh))

    @torch.inference_mode()
    def replay(self) -> None:
        """Run the operators again. Raises `GpuError` for memory that only the graph still has."""
        for storage, tensor in self._outside.items():
            num_owners = torch._C._storage_Use_Count(storage) - 1  # the call is one itself
            if num_owners <= self._num_own[storage]:
                raise GpuError(f"a replay reads {tuple(tensor.shape)} at a stale pointer")
        for kernel in self._kernels:
            out = kernel.func(*kernel.args, **kernel.kwargs)
            if isinstance(out, tuple) and isinstance(out[-1], torch.ScriptObject):
                out[-1].wait()  # for other ranks
            for into, result in zip(kernel.fresh, leaves(out), strict=True):
                if into is not None:
                    into.copy_(result)

    @torch.inference_mode()
    def lose(self, kept: set[int]) -> None:
        """Overwrite the graph's memory but for the storages `kept`."""
        for kernel in self._kernels:
            for result in kernel.fresh:
                if result is not None and storage_of(result) not in kept:
                    result.fill_(_lost(result.dtype))

    def _held(self, tensor: Tensor) -> Tensor:
        """Return the operand; one from outside as an alias, so that it is known who owns it."""
        storage = storage_of(tensor)
        if storage in self.private:
            return tensor
        alias = tensor.detach()
        self._num_own[storage] += 1
        self._outside.setdefault(storage, alias)
        return alias


def _lost(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max
