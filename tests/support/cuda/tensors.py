"""Tensors that say they are on a GPU and compute on the CPU, for machines without one.
A `CudaTensor` wraps a CPU tensor. Each operator on one goes through the `Gpu` given to
`on_gpu`, which refuses what a GPU would: operands of two devices, and what a capture can't hold."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from support.cuda.gpu import Gpu

DEVICE = torch.device("cuda", 0)
_WHOLE = {
    *("__getitem__", "__setitem__", "__invert__", "nonzero", "where", "contiguous", "__rpow__"),
    *("scaled_dot_product_attention", "rms_norm"),
}
"""Calls that need a CUDA runtime before, or between, the operators that they dispatch."""


class _Running(threading.local):
    kernels: "Gpu"


_running = _Running()


class CudaTensor(Tensor):
    """A tensor on the simulated GPU; `inner` has its values, or its shape alone."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "CudaTensor":
        with torch.inference_mode(False):  # else views of weights could not be wrapped in it
            made = Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=DEVICE,
            )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _running.kernels.run(func, args, kwargs or {})

    def __repr__(self, **_: object) -> str:
        return f"CudaTensor({self.inner})"


def name_of(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name).split("::")[-1]
    return func if isinstance(func, str) else getattr(func, "__name__", str(func))


def leaves(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    replaced(values, lambda leaf: found.append(leaf) or leaf)
    return found


def replaced(values: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return the values with each tensor changed; torch's own trees take ten times as long."""
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, dict):
        return {name: replaced(value, change) for name, value in values.items()}
    if type(values) in (tuple, list, torch.Size) and not (values and type(values[0]) is float):
        return type(values)([replaced(value, change) for value in values])
    if isinstance(values, tuple):  # with names
        return type(values)(*[replaced(value, change) for value in values])
    return values


def on_host(values: Any, place: str = "cpu") -> Any:
    """Return the values with the tensors of `place` in place of those that wrap them."""

    def inner(at: Tensor) -> Tensor:
        if isinstance(at, CudaTensor):
            return at.inner
        return at.to(place) if at.dim() and not at.is_meta else at

    return replaced(values, inner)


def on_device(values: Any, given: Any) -> Any:
    """Return results as tensors of the GPU; one that is an operand itself stays that operand."""
    known = {id(leaf.inner): leaf for leaf in leaves(given) if isinstance(leaf, CudaTensor)}
    return replaced(values, lambda at: known[id(at)] if id(at) in known else CudaTensor(at))


@contextmanager
def on_gpu(kernels: "Gpu") -> Iterator[None]:
    """Let `cuda` be a device of this thread, whose operators `kernels` run."""
    _running.kernels = kernels
    with _Calls():
        yield


class _Calls(TorchFunctionMode):
    """Calls that ask for a CUDA runtime before any operator runs, answered without one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), name_of(func)
        kwargs.pop("pin_memory", None)  # all memory of the host is alike here
        is_there = any(isinstance(arg, CudaTensor) for arg in args[:2])
        if name in _ANSWERS and (is_there or name in _MOVES):
            return _ANSWERS[name](func, args, kwargs)
        if name in _WHOLE and is_there:
            return _running.kernels.run(func, args, kwargs)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            return _made(func, args, {**kwargs, "device": _running.kernels.place})
        return func(*args, **kwargs)


def _read(func: Any, args: Any, kwargs: Any) -> Any:
    return func(_running.kernels.read(name_of(func), args[0]), *args[1:], **kwargs)


def _copied(func: Any, into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    kernels = _running.kernels
    if not isinstance(into, CudaTensor):
        return func(into, kernels.read("copy_", source, waits=not non_blocking))
    return kernels.run(torch.ops.aten.copy_.default, (into, source), {})


def _moved(func: Any, args: Any, _: Any) -> Any:
    source, name, kernels = args[0], name_of(func), _running.kernels
    if isinstance(source, CudaTensor):
        return kernels.read(name, source).clone() if name == "cpu" else source
    return kernels.send(name, source) if name == "cuda" else source


def _converted(func: Any, args: Any, kwargs: Any) -> Tensor:
    source, *rest = args
    if len(rest) == 1 and isinstance(rest[0], Tensor):
        rest = [rest[0].device, rest[0].dtype]
    device, dtype, _, _ = torch._C._nn._parse_to(*rest, **kwargs)
    is_there = isinstance(source, CudaTensor)
    if device is not None and is_there and device.type == "cpu":
        source = _running.kernels.read("to", source).clone()
    if device is not None and not is_there and device.type == "cuda":
        source = _running.kernels.send("to", source)
    return source if dtype is None else func(source, dtype=dtype)


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what a factory makes: filled there, or sent where its values come from the host."""
    if func in (torch.tensor, torch.as_tensor):
        return _running.kernels.send(func.__name__, func(*args, **{**kwargs, "device": "cpu"}))
    return _running.kernels.make(func, args, kwargs)


_MOVES = {"to", "cuda", "cpu", "pin_memory"}
_ANSWERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    **dict.fromkeys(("tolist", "numpy", "item"), _read),
    **dict.fromkeys(("__float__", "__int__", "__bool__", "__index__"), _read),
    **dict.fromkeys(("cpu", "cuda"), _moved),
    "copy_": lambda func, args, kwargs: _copied(func, *args[:2], **kwargs),
    "new_tensor": lambda func, args, kwargs: _running.kernels.send(
        name_of(func), func(args[0].inner, *args[1:], **kwargs)
    ),
    "data_ptr": lambda _, args, __: args[0].inner.data_ptr(),
    "to": _converted,
    "pin_memory": lambda _, args, __: _running.kernels.pin(args[0]),
}
