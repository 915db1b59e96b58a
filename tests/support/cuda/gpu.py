"""A simulated GPU: streams, graphs, and a refusal of all that a real one would answer with an error
or with wrong numbers. Kernels run at once, on the CPU; what a capture holds is recorded and checked
by `Graph`."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from slipstream.models.cuda.graphs import Replay
from support.cuda import operators  # noqa: F401
from support.cuda.graph import INDEXING, GpuError, Graph, signature, storage_of
from support.cuda.tensors import CudaTensor, leaves, name_of, on_device, on_gpu, on_host

MEMORY = 4 << 30


class Stream:
    """An order of kernels, to be joined with its thread's by a wait in either direction."""

    has_waited = False

    def __init__(self, gpu: "Gpu") -> None:
        self._gpu = gpu

    def wait_stream(self, other: "Stream") -> None:
        """Let this stream's next kernels run after those of the other until now."""
        self.has_waited = True
        if self._gpu.thread.unjoined is other:
            self._gpu.thread.unjoined = None


class _Thread(threading.local):
    capture: Graph | None = None
    trace: list[Any] | None = None
    stream: Stream | None = None
    unjoined: Stream | None = None
    """One with work that the thread's own stream has not waited for."""


class Gpu:
    """Runs operators, with streams and graphs; without values, the host reads ones."""

    def __init__(self, *, has_values: bool = True) -> None:
        self.place = "cpu" if has_values else "meta"
        self.default_stream = Stream(self)
        self.thread = _Thread()
        self.num_waits = 0
        self._now = 0
        self._private: set[int] = set()
        self._current: dict[int, int] = {}

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._check_devices(func, (args, kwargs))
        for leaf in leaves((args, kwargs)):
            self._check_age(func, leaf)
        return self.make(func, args, kwargs)

    def make(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.thread.unjoined is not None and self.thread.stream is None:
            raise GpuError(f"{name_of(func)} is ordered after no wait for another stream's work")
        given = on_host((args, kwargs), self.place)
        if self.thread.capture is not None:
            self.thread.capture.check(func, *given)
        out = func(*given[0], **given[1])
        if self.thread.capture is not None:
            self.thread.capture.record(func, given, out)
        if self.thread.trace is not None:
            self.thread.trace.append(signature(func, given, out))
        return self._born(on_device(out, (args, kwargs)))

    def read(self, name: str, source: CudaTensor, *, waits: bool = True) -> Tensor:
        self._check_age(name, source)
        self._refuse_in_capture(f"{name} reads values on the host")
        self.num_waits += waits and source.numel() > 0
        return source.inner if self.place == "cpu" else torch.ones_like(source.inner, device="cpu")

    def send(self, name: str, source: Tensor) -> CudaTensor:
        self._refuse_in_capture(f"{name} copies between devices")
        self.num_waits += 1  # the host's memory is not pinned
        return self._born(CudaTensor(source.to(self.place, copy=True)))

    def pin(self, source: Tensor) -> Tensor:
        self._refuse_in_capture("pin_memory allocates")
        return source.clone()

    def publish(self, graph: Graph, outputs: tuple[Tensor, ...]) -> None:
        """Have a graph's memory hold what its next replay, or another's, leaves there: its
        `outputs` are new, and all else is lost."""
        self._now += 1
        kept = graph.private & {storage_of(output) for output in on_host(outputs)}
        if not graph.private <= self._private:
            self._private |= graph.private
            weakref.finalize(graph, self._forget, graph.private)
        self._current.update(dict.fromkeys(kept, self._now))
        graph.lose(kept)
        for output in outputs:
            output.born = self._now

    def _forget(self, storages: set[int]) -> None:
        self._private -= storages
        for storage in storages:
            self._current.pop(storage, None)

    def _born(self, made: Any) -> Any:
        for leaf in leaves(made):
            leaf.__dict__.setdefault("born", self._now)
        return made

    def _check_devices(self, func: object, given: Any) -> None:
        """Raise `GpuError` where operands are on two devices: single numbers, copies and indices
        may be the host's, the last two not in a capture."""
        others = [leaf for leaf in leaves(given) if not isinstance(leaf, CudaTensor) and leaf.dim()]
        if not others:
            return
        name = name_of(func)
        if name not in INDEXING | {"copy_"}:
            raise GpuError(f"{name} has operands on the GPU and on the host")
        self._refuse_in_capture(f"{name} copies between devices")

    def _check_age(self, func: object, leaf: Tensor) -> None:
        if self.thread.capture is not None or not isinstance(leaf, CudaTensor):
            return
        storage = storage_of(leaf.inner)
        if storage in self._private and storage not in self._current:
            raise GpuError(f"{name_of(func)} uses memory that a capture allocated")
        if leaf.born < self._current.get(storage, 0):
            raise GpuError(f"{name_of(func)} reads an output that a later replay has overwritten")

    def _refuse_in_capture(self, reason: str) -> None:
        if self.thread.capture is not None:
            raise GpuError(f"in a capture, {reason}")


def _checked_run(gpu: Gpu) -> Callable[..., tuple[Tensor, ...]]:
    """Return a `Replay.run` whose every run is compared with the body's own, by operator."""
    run = Replay.run

    def checked(self: Replay, key: Any, body: Any, inputs: Any) -> tuple[Tensor, ...]:
        outputs = run(self, key, body, inputs)
        entry = self._entries[key]
        graph: Graph = entry.replay.__self__  # type: ignore[attr-defined]
        gpu.publish(graph, outputs)
        gpu.thread.trace = []
        with torch.inference_mode():
            expected = body(*entry.inputs)
        own, gpu.thread.trace = gpu.thread.trace, None
        if own != graph.signatures:
            raise GpuError(f"the body of {key} runs other operators than were captured")
        if gpu.place == "meta":
            return outputs
        for found, wanted in zip(on_host(outputs), on_host(expected), strict=True):
            if not torch.equal(found.nan_to_num(7.5), wanted.nan_to_num(7.5)):
                raise GpuError(f"the graph of {key} computes otherwise than its body")
        return outputs

    return checked


@contextmanager
def simulated_gpu(*, has_values: bool = True) -> Iterator[Gpu]:
    """Let `cuda` be a simulated device of this thread, and of those that it starts.
    Without values every operator has its shapes and types, and takes no time and memory."""
    gpu, run = Gpu(has_values=has_values), threading.Thread.run

    def run_on_gpu(thread: threading.Thread) -> None:
        with on_gpu(gpu):
            run(thread)

    with (
        # For the whole process: a thread may end later than the device does.
        mock.patch.object(torch.__future__, "_overwrite_module_params_on_conversion", True),
        mock.patch.object(threading.Thread, "run", run_on_gpu),
        mock.patch.multiple(torch.cuda, **_runtime(gpu)),
        mock.patch.object(Replay, "run", _checked_run(gpu)),
        on_gpu(gpu),
    ):
        yield gpu


_FACTS: dict[str, Any] = {
    "get_device_name": lambda _device=None: "simulated",
    "current_device": lambda: 0,
    "mem_get_info": lambda _device=None: (MEMORY, MEMORY),
    **dict.fromkeys(("memory_reserved", "memory_allocated"), lambda _device=None: 0),
    "get_device_capability": lambda _device=None: (9, 0),
}


def _runtime(gpu: Gpu) -> dict[str, Any]:
    """The functions of `torch.cuda` that Slipstream calls."""

    @contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        if not chosen.has_waited:
            raise GpuError("a stream is ordered after no wait for another stream's work")
        gpu.thread.stream = chosen
        yield
        gpu.thread.stream, gpu.thread.unjoined = None, chosen

    @contextmanager
    def graph(into: Graph, _pool: object, of: Stream | None = None, *_: object) -> Iterator[None]:
        if of is None:
            raise GpuError("a capture without a stream is of the device that is current")
        gpu.thread.capture = into
        try:
            yield
        finally:
            gpu.thread.capture = None

    class OwnStream(Stream):  # a class: what is imported meanwhile names it in annotations
        def __init__(self, _device: object = None) -> None:
            super().__init__(gpu)

    return {
        **_FACTS,
        "Stream": OwnStream,
        "stream": stream,
        "current_stream": lambda _device=None: gpu.thread.stream or gpu.default_stream,
        "CUDAGraph": Graph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda _device=None: setattr(gpu.thread, "unjoined", None),
    }
