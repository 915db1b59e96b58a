"""Keys and values of an engine: pages of one preallocated buffer a layer, counted by user."""

import ctypes
import math
import mmap
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from slipstream.core.errors import CapacityError, InvalidRequest, ModelError, NoRoom
from slipstream.models.dtypes import Array

BLOCK_SIZE = 128
"""Key ranges are padded to a multiple of this, so a page of a cache is as long."""
SCRATCH_ROWS = 512


def round_up(count: int, block: int) -> int:
    """The smallest multiple of `block` that is at least `count`."""
    return -(-count // block) * block


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of a model's cache: [2 * kv_heads, slots, head_dim] a layer, keys before values.

    `device` is named as torch names it, `cpu` or `cuda:0`. A model that is split among ranks has
    `num_kv_heads` in all, and each rank an equal part. Behind its layers, number num_layers + l
    has the hidden states that layer l of `hidden_layers` takes in, for l = num_layers those that
    the last layer gives: [2, slots, hidden_size / 2], in two halves, whole on every rank.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: np.dtype[Any]
    device: str
    num_ranks: int = 1
    hidden_layers: tuple[int, ...] = ()
    hidden_size: int = 0

    @property
    def num_own_heads(self) -> int:
        """Key heads of one rank."""
        return self.num_kv_heads // self.num_ranks

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys, values and hidden states that one token takes, on each rank."""
        return sum(rows * width for rows, width in self.shapes().values()) * self.dtype.itemsize

    @property
    def bytes_per_page(self) -> int:
        """Bytes of a block of `BLOCK_SIZE` tokens."""
        return BLOCK_SIZE * self.bytes_per_token

    def shapes(self) -> dict[int, tuple[int, int]]:
        """Return rows and width of the buffers [rows, slots, width] of a rank, by their numbers."""
        own = dict.fromkeys(range(self.num_layers), (2 * self.num_own_heads, self.head_dim))
        states = (self.num_layers + layer for layer in self.hidden_layers)
        return own | dict.fromkeys(states, (2, self.hidden_size // 2))

    def keeping(self, hidden_layers: Sequence[int], hidden_size: int) -> "KvLayout":
        """Return this layout with hidden states [hidden_size]. Raises `InvalidRequest` for layers
        that are not there, `ModelError` for an odd size."""
        if len({*hidden_layers} & {*range(self.num_layers + 1)}) < len(hidden_layers):
            raise InvalidRequest(
                f"hidden_layers is {', '.join(map(str, hidden_layers))}, but must be layers from 0"
                f" to {self.num_layers}, each once"
            )
        if hidden_layers and hidden_size % 2:
            raise ModelError(f"hidden states of {hidden_size} elements can't be kept in halves")
        return replace(self, hidden_layers=tuple(hidden_layers), hidden_size=hidden_size)


class PageList:
    """Free pages 0..count-1, handed out as neighbours wherever that is possible.

    A table of neighbours is read in place, any other has to be gathered: hence the care.
    """

    def __init__(self, count: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, count)] if count else []
        self._num_free = count

    def __len__(self) -> int:
        return self._num_free

    def take(self, count: int, *, after: int | None = None) -> list[int]:
        """`count` pages, of which there must be enough; those behind page `after` first.

        Else out of the smallest run that is long enough, or of the longest ones.
        """
        assert count <= self._num_free, "the caller has asked how many there are"
        pages: list[int] = []
        if after is not None:
            index = bisect_left(self._runs, (after + 1, 0))
            if index < len(self._runs) and self._runs[index][0] == after + 1:
                pages += self._cut(index, count)
        while len(pages) < count:
            missing = count - len(pages)
            fitting = [index for index, (_, size) in enumerate(self._runs) if size >= missing]
            sizes = [size for _, size in self._runs]
            best = min(fitting, key=sizes.__getitem__) if fitting else sizes.index(max(sizes))
            pages += self._cut(best, missing)
        self._num_free -= count
        return pages

    def give(self, page: int) -> None:
        """Take a page back."""
        index = bisect_left(self._runs, (page, 0))
        start, size = page, 1
        if index < len(self._runs) and self._runs[index][0] == page + 1:
            size += self._runs.pop(index)[1]
        if index > 0 and sum(self._runs[index - 1]) == page:
            index -= 1
            start, before = self._runs.pop(index)
            size += before
        self._runs.insert(index, (start, size))
        self._num_free += 1

    def _cut(self, index: int, count: int) -> list[int]:
        """Up to `count` pages off the front of a run."""
        start, size = self._runs[index]
        taken = min(size, count)
        if taken == size:
            del self._runs[index]
        else:
            self._runs[index] = (start + taken, size - taken)
        return list(range(start, start + taken))


class Buffers:
    """Allocator of buffers [2 * kv_heads, slots, head_dim], and what is done with them: of arrays
    on the host, whose memory is mapped and not allocated by numpy, which asks for huge pages: with
    heads far apart a short text would touch hundreds of MB of them. What is never touched takes
    no memory."""

    def new(self, shape: Sequence[int], dtype: "np.dtype[Any]", *, is_filled: bool = False) -> Any:
        """Return a new buffer; one that `is_filled` soon has huge pages, where there are any: they
        are there in a fifth of the time."""
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
        if is_filled and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype).reshape(shape)

    def write(self, buffer: Any, slots: slice, values: Array) -> None:
        """Write keys and values [2 * kv_heads, n, head_dim] of the host."""
        buffer[:, slots] = values

    def clear(self, buffer: Any, slots: slice) -> None:
        """Fill slots with zeros."""
        buffer[:, slots] = 0

    def copy(self, buffers: Iterable[Any], source: Sequence[int], into: Sequence[int]) -> None:
        """Copy slots of each buffer; all are read before any is written."""
        for buffer in buffers:
            buffer[:, into] = buffer[:, source]

    def read(self, buffer: Any, slots: Array) -> Any:
        """Return a copy of slots, where the buffer is."""
        return buffer[:, slots]

    def on_host(self, values: Any) -> Array:
        """Return keys and values of a buffer as an array on the host."""
        found: Array = values
        return found


HOST = Buffers()


class Peers(Protocol):
    """A pool's counterparts at the other ranks of a model that is split."""

    def copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        """Copy the same slots there."""

    def heads(self, own: Any, pages: Sequence[int], layer: int, span: range) -> Any:
        """All heads [2 * kv_heads, n, head_dim] of a layer at the positions of `span`, which lie
        in `pages`; `own` are those that are here."""


class KvPool:
    """Pages of `BLOCK_SIZE` slots in the buffers of a layout, one for each of its numbers.

    A page may have several users; who wants to write to one needs it alone. Behind the pages lie
    scratch slots for tokens of one forward that are not kept, or not in place. Memory is
    reserved at once, but pages are cleared when they are first handed out: what is masked must be
    a finite number, and an untouched page of a CPU costs nothing. `buffers` allocates them.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_pages: int,
        *,
        scratch_rows: int = SCRATCH_ROWS,
        buffers: Buffers = HOST,
    ) -> None:
        self.layout, self.buffers = layout, buffers
        self.peers: Peers | None = None
        self.num_pages = num_pages
        self.scratch = range(
            num_pages * BLOCK_SIZE, num_pages * BLOCK_SIZE + round_up(scratch_rows, BLOCK_SIZE)
        )
        self._layers = {
            number: buffers.new((rows, self.scratch.stop, width), layout.dtype)
            for number, (rows, width) in layout.shapes().items()
        }
        self._free = PageList(num_pages)
        self._num_users = [0] * num_pages
        self._is_clear = bytearray(num_pages)
        self._clear(slice(self.scratch.start, self.scratch.stop))

    @property
    def num_free(self) -> int:
        """Pages without a user."""
        return len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved, scratch included."""
        return self.scratch.stop * self.layout.bytes_per_token

    def layer(self, index: int) -> Any:
        """The buffer of a number, see `KvLayout`: a layer's keys, then its values."""
        return self._layers[index]

    @cached_property
    def addresses(self) -> "ctypes.Array[ctypes.c_void_p]":
        """Addresses of the buffers on the host by number, 0 for those that are not kept; they take
        long to read. Without hidden states there are none behind the layers'."""
        found = {number: layer.ctypes.data for number, layer in self._layers.items()}
        count = self.layout.num_layers
        numbers = range(2 * count + 1 if self.layout.hidden_layers else count)
        return (ctypes.c_void_p * len(numbers))(*(found.get(number, 0) for number in numbers))

    def slots(self, pages: Sequence[int]) -> Array:
        """Return the slots of pages in order, int64."""
        first = np.array(pages, np.int64)[:, None] * BLOCK_SIZE
        return (first + np.arange(BLOCK_SIZE)).reshape(-1)

    def take(self, count: int, *, after: int | None = None) -> list[int]:
        """Pages for one user, neighbours where possible, behind page `after` best of all.

        Raises `CapacityError` for more than there are at all, `NoRoom` for more than are free.
        """
        if count > self.num_pages:
            raise CapacityError(
                f"{count * BLOCK_SIZE} slots of keys and values are needed, but there are"
                f" {self.num_pages * BLOCK_SIZE} in all"
            )
        if count > self.num_free:
            raise NoRoom(
                f"{count * BLOCK_SIZE} slots of keys and values are needed, but"
                f" {self.num_free * BLOCK_SIZE} are free"
            )
        pages = self._free.take(count, after=after)
        for page in pages:
            self._num_users[page] = 1
            if not self._is_clear[page]:
                self._is_clear[page] = True
                self._clear(slice(page * BLOCK_SIZE, (page + 1) * BLOCK_SIZE))
        return pages

    def num_users(self, page: int) -> int:
        return self._num_users[page]

    def share(self, page: int) -> None:
        """One more user of a page that is in use."""
        assert self._num_users[page] > 0
        self._num_users[page] += 1

    def drop(self, page: int) -> None:
        """One user less; the last one's page is free."""
        self._num_users[page] -= 1
        assert self._num_users[page] >= 0
        if not self._num_users[page]:
            self._free.give(page)

    def copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        """Copy slots; all are read before any is written."""
        if self.peers is not None:
            self.peers.copy(source, into)
        self.buffers.copy(self._layers.values(), source, into)

    def _clear(self, slots: slice) -> None:
        for buffer in self._layers.values():
            self.buffers.clear(buffer, slots)
