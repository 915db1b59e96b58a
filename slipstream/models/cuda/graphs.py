"""Forwards on tensors that stay where they are: captured once and replayed on CUDA.

A body is a function of tensors that looks at no value on the host. Each key's body is captured as
one graph, so that replaying it costs one launch.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor

Body = Callable[..., tuple[Tensor, ...]]


@dataclass(slots=True)
class _Capture:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    replay: Callable[[], None]
    body: Body
    """Kept, because a graph reads what the body refers to."""


class Replay:
    """Bodies by key, captured on one device.

    One thread, one stream: a run's outputs are overwritten by the next run of its key.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entries: dict[Hashable, _Capture] = {}
        # One memory for all graphs: they never run at once, and their outputs are held.
        self._pool = torch.cuda.graph_pool_handle()
        # Without a stream of its own, torch captures on the device that is current at that time.
        self._stream = torch.cuda.Stream(device)
        _replays.add(self)

    @torch.inference_mode()
    def run(self, key: Hashable, body: Body, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`body(*inputs)` through the static tensors of `key`; made at its first run.

        `inputs` may lie on the host; a key's always have the same shapes and dtypes, and its body
        is always the same function. The body may run more than once, so that what it writes
        besides its outputs must not depend on what it finds there.
        """
        if key not in self._entries:  # warm up beside the current stream, then record
            held = tuple(sent(given, self._device) for given in inputs)
            here = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                body(*held)
            here.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                outputs = body(*held)
            self._entries[key] = _Capture(held, outputs, graph.replay, body)
        entry = self._entries[key]
        for static, given in zip(entry.inputs, inputs, strict=True):
            send(given, static)
        entry.replay()
        return entry.outputs


_replays: WeakSet[Replay] = WeakSet()


def num_captures() -> int:
    """Return how many bodies this process has captured."""
    return sum(len(replay._entries) for replay in _replays)


def release_graphs() -> None:
    """Forget every body of this process, and what was captured of it."""
    for replay in _replays:
        replay._entries.clear()


def sent(source: Tensor, device: torch.device | str) -> Tensor:
    """Return a copy of values on a device, as `send` makes it."""
    found = torch.empty_like(source, device=device)
    send(source, found)
    return found


def send(source: Tensor, into: Tensor) -> None:
    """Copy without waiting; pinned memory is kept by torch until the copy is through."""
    if into.device.type == "cuda" and source.device.type == "cpu":
        source = source.pin_memory()
    into.copy_(source, non_blocking=True)
