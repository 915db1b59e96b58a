"""Forwards on tensors that stay where they are: captured once and replayed on CUDA.

A body is a function of tensors that looks at no value on the host. On CUDA each key's body is
captured as one graph, so that replaying it costs one launch; elsewhere it is called as it is.
Static inputs and outputs are the same in both.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from slipstream.models.dtypes import Array
from slipstream.models.torch.arrays import as_array

Body = Callable[..., tuple[Tensor, ...]]

MAX_GRAPHS = 96
_WARM_UP_CALLS = 2


@dataclass(slots=True)
class _Capture:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    replay: Callable[[], None]
    body: Body
    """Kept, because a graph reads what the body refers to."""


class Replay:
    """Bodies by key, the least recently used beyond `max_graphs` forgotten.

    One thread, one stream: a run's outputs are overwritten by the next run of its key.
    """

    def __init__(self, device: torch.device, *, max_graphs: int = MAX_GRAPHS) -> None:
        if max_graphs < 1:
            raise ValueError(f"max_graphs is {max_graphs}, but must be at least 1")
        self._device = device
        self._max_graphs = max_graphs
        self._entries: OrderedDict[Hashable, _Capture] = OrderedDict()
        self._pool: Any = None
        _replays.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    @torch.inference_mode()
    def run(self, key: Hashable, body: Body, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`body(*inputs)` through the static tensors of `key`; made at its first run.

        `inputs` may lie on the host; a key's always have the same shapes and dtypes, and its body
        is always the same function. The body may run more than once, so that what it writes
        besides its outputs must not depend on what it finds there.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._make(body, inputs)
            self._entries[key] = entry
            if len(self._entries) > self._max_graphs:
                self._entries.popitem(last=False)
        else:
            for static, given in zip(entry.inputs, inputs, strict=True):
                send(given, static)
        self._entries.move_to_end(key)
        entry.replay()
        return entry.outputs

    def _make(self, body: Body, inputs: Sequence[Tensor]) -> _Capture:
        static = tuple(torch.empty_like(given, device=self._device) for given in inputs)
        for into, given in zip(static, inputs, strict=True):
            send(given, into)
        if self._device.type == "cuda":
            return self._capture(body, static)
        outputs = tuple(out.clone() for out in body(*static))

        def replay() -> None:
            for into, out in zip(outputs, body(*static), strict=True):
                into.copy_(out)

        return _Capture(static, outputs, replay, body)

    def _capture(self, body: Body, static: tuple[Tensor, ...]) -> _Capture:
        """Warm up beside the current stream, then record."""
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                body(*static)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # One pool for all graphs: they never run at once, and their outputs are held.
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = body(*static)
        return _Capture(static, outputs, graph.replay, body)


_replays: WeakSet[Replay] = WeakSet()


def num_captures() -> int:
    """Return how many bodies this process has, each of them captured where the device can."""
    return sum(map(len, _replays))


def release_graphs() -> None:
    """Forget every body of this process, and what was captured of it."""
    for replay in _replays:
        replay._entries.clear()


def fetch(values: Tensor) -> Callable[[], Array]:
    """Begin to copy values to the host; return what waits for them."""
    if values.device.type != "cuda":
        found = as_array(values.clone())
        return lambda: found
    copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copied.copy_(values, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait() -> Array:
        event.synchronize()
        return as_array(copied)

    return wait


def send(source: Tensor, into: Tensor) -> None:
    """Copy without waiting; pinned memory is kept by torch until the copy is through."""
    if into.device.type == "cuda" and source.device.type == "cpu":
        source = source.pin_memory()
    into.copy_(source, non_blocking=True)
