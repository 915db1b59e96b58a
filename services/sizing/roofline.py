"""A target's step on a GPU by arithmetic: what it reads, what it computes, and which takes longer.

The roofline model (Williams, Waterman, Patterson 2009). Floors follow from data sheets; expected
times assume shares of them, which are guesses until `slipstream bench gpu` has measured them.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.sizing.gpus import Gpu
from slipstream.sizing.recording import DeviceTimes

if TYPE_CHECKING:
    from slipstream.models.target.architecture import Architecture

BANDWIDTH_SHARE, FLOPS_SHARE = 0.8, 0.6
"""Shares of the data sheet's figures that large products are taken to reach."""
GRAPH_S = 50e-6
"""Time of launching a captured forward, and of the transfers around it."""
LAYER_S = 60e-6
"""Time of launching the operators of a layer one by one: a model that is split has no graphs."""
ALL_REDUCE_S, LINK_BANDWIDTH = 15e-6, 450e9
"""Time of a sum over GPUs of one machine, two a layer, and bytes per second between them."""
GATHERED = 3
"""Times that keys and values move: read in their pages, written side by side, read again."""
KV_SHARE, RESERVED = 0.85, 1.5e9
"""Share of the free memory for keys and values (`kv_memory` auto), and bytes of CUDA itself."""
WORKSPACE_ROWS = 256
GRAPHS_SHARE = 1 / 16
"""Share of a device that captures may gather in."""
MOST_READ = 640
"""Positions of a context that a draft reads: the first ones and its window of the newest."""
_BYTES = 2
_NUM_READ, _HEAD = 3, 8192
"""Target layers that a draft reads, and tokens of its head."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes read and operations computed; `launch_s` is spent besides."""

    read: float
    flops: float
    launch_s: float = GRAPH_S

    def floor_s(self, gpu: Gpu) -> float:
        """Return the least time that the data sheet allows."""
        return max(self.read / gpu.bandwidth, self.flops / gpu.flops)

    def expected_s(self, gpu: Gpu) -> float:
        """Return an estimate of the time."""
        read_s = self.read / (gpu.bandwidth * BANDWIDTH_SHARE)
        return max(read_s, self.flops / (gpu.flops * FLOPS_SHARE)) + self.launch_s


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model on each of its GPUs: weights, those that a step reads, and keys and values
    of a token."""

    weights: float
    read: float
    kv_per_token: float
    draft_weights: float
    draft_kv_per_token: float


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A model in bfloat16 on `num_gpus` GPUs, whose sessions have `context` tokens."""

    model: "Architecture"
    gpu: Gpu
    num_gpus: int
    context: int

    def __post_init__(self) -> None:
        heads, limit = self.model.num_kv_heads, self.model.context_length
        if self.num_gpus < 1 or heads % self.num_gpus:
            raise InvalidRequest(
                f"tensor_parallel is {self.num_gpus}, but the model has {heads} key heads, which"
                " don't divide among so many"
            )
        if not 1 <= self.context <= limit:
            raise InvalidRequest(
                f"the context is {self.context} tokens, but the model has 1 to {limit}"
            )
        if self._kv_memory() < self.context * self.sizes().kv_per_token:
            raise CapacityError(
                f"{self.num_gpus} x {self.gpu.name} have no room for one session of {self.context}"
                f" tokens beside {self.sizes().weights * self.num_gpus / 1e9:.0f} GB of weights;"
                f" {self._enough()}"
            )

    def sizes(self) -> Sizes:
        """Return bytes on each GPU."""
        at, num = self.model, self.num_gpus
        table = at.vocab_size * at.hidden * _BYTES
        # The head is not among the tensors; the table of embeddings, as large, is hardly read.
        read = sum(prod(shape) for _, shape in at.tensors()) * _BYTES
        layer_kv = 2 * at.num_kv_heads * at.head_dim * _BYTES
        layer = sum(prod(shape) * _BYTES for _, shape in at.layer(0))
        cross = 2 * at.num_heads * at.head_dim * at.hidden * _BYTES
        return Sizes(
            weights=(read + (0 if at.is_tied else table)) / num,
            read=read / num,
            kv_per_token=at.num_layers * layer_kv / num,
            draft_weights=layer + _NUM_READ * cross + _HEAD * at.hidden * _BYTES,
            draft_kv_per_token=(1 + _NUM_READ) * layer_kv,
        )

    def workspace(self) -> float:
        """Return the bytes of a step's activations and logits, and of what captures gather in."""
        at = self.model
        row = 4 * (at.hidden + at.mlp) * _BYTES + at.vocab_size * (_BYTES + 4)
        return WORKSPACE_ROWS * row + (self.gpu.memory * GRAPHS_SHARE if self.num_gpus == 1 else 0)

    def max_sessions(self) -> int:
        """Return how many sessions of the context fit at once."""
        return int(self._kv_memory() // (self.context * self.sizes().kv_per_token))

    def step(self, sessions: int, rows: int, *, is_gathered: bool = True) -> Work:
        """Return the work of a forward of `rows` tokens of each of some sessions."""
        at, sizes, tokens = self.model, self.sizes(), sessions * rows
        kv = sessions * self.context * sizes.kv_per_token
        products = tokens * sizes.read / _BYTES * 2
        attention = 4 * at.num_layers * at.num_heads * at.head_dim * self.context * tokens
        return Work(
            sizes.read + kv * (GATHERED if is_gathered else 1),
            products + attention / self.num_gpus,
            GRAPH_S if self.num_gpus == 1 else self._split_s(tokens),
        )

    def draft_step(self, sessions: int) -> Work:
        """Return the work of one token of a GliDe draft for each session, on a GPU of its own; a
        chain is one graph, so that a step launches nothing."""
        at, sizes, keys = self.model, self.sizes(), sessions * min(self.context, MOST_READ)
        read = sizes.draft_weights + keys * sizes.draft_kv_per_token
        attention = 4 * (1 + _NUM_READ) * at.num_heads * at.head_dim * keys
        return Work(read, sessions * sizes.draft_weights + attention, 0.0)

    def bound_rows(self, sessions: int) -> int:
        """Return the fewest rows of each session at which computing takes longer than reading."""
        reading_s = self.step(sessions, 1).read / self.gpu.bandwidth
        return int(reading_s * self.gpu.flops / self.step(sessions, 1).flops) + 1

    def times(self, sessions: int) -> DeviceTimes:
        """Return expected times as `slipstream size` takes them; a call takes 1 ms."""
        points = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        verify = tuple((rows, self.step(1, rows).expected_s(self.gpu)) for rows in points)
        # Sessions add their keys and values, which a step of as many rows of one has not.
        together_s = self.step(sessions, 1).expected_s(self.gpu)
        more_s = max(together_s - self.step(1, sessions).expected_s(self.gpu), 0.0)
        more_s /= max(sessions - 1, 1)
        level_s = self.draft_step(1).expected_s(self.gpu)
        many_s = self.draft_step(64).expected_s(self.gpu)
        return DeviceTimes(verify, level_s, (many_s - level_s) / 63, more_s)

    def _kv_memory(self, num_gpus: int | None = None) -> float:
        """Bytes for keys and values on each of so many GPUs, by default its own number."""
        num = num_gpus or self.num_gpus
        weights = self.sizes().weights * self.num_gpus / num
        free = self.gpu.memory - RESERVED - weights - self.workspace()
        return max(free, 0.0) * KV_SHARE

    def _split_s(self, tokens: int) -> float:
        at = self.model
        moved_s = tokens * at.hidden * _BYTES / LINK_BANDWIDTH
        return at.num_layers * (LAYER_S + 2 * (ALL_REDUCE_S + moved_s))

    def _enough(self) -> str:
        """Name the least number of GPUs with room for a session."""
        session = self.context * self.sizes().kv_per_token * self.num_gpus
        heads = self.model.num_kv_heads
        for num in range(self.num_gpus + 1, heads + 1):
            if not heads % num and self._kv_memory(num) >= session / num:
                return f"{num} have"
        return "no number of them has"
