"""A copy of a session's keys and values in its target: a prefix that grows while it is read.

One thread writes while another reads.
"""

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.core.errors import CapacityError, InvalidRequest, NoRoom
from slipstream.models.dtypes import Array
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, round_up
from slipstream.models.memory import buffers_for, shown
from slipstream.models.scorer import NUM_SINKS, KvView


class ByteBudget:
    """Counts bytes against a limit. For one thread."""

    def __init__(
        self, limit: int | None = None, make_room: Callable[[int], None] = lambda num_bytes: None
    ) -> None:
        """`limit` None means no limit. `make_room` may free bytes, so that as many are free."""
        self.limit = limit
        self.num_bytes = 0
        self._make_room = make_room

    def has(self, num_bytes: int) -> bool:
        """Return whether so many are free."""
        return self.limit is None or self.num_bytes + num_bytes <= self.limit

    def take(self, num_bytes: int) -> None:
        """Count more of them. Raises `NoRoom` above the limit, and then counts none."""
        if not self.has(num_bytes):
            self._make_room(num_bytes)
        if not self.has(num_bytes):
            raise NoRoom(
                f"{shown(num_bytes)} more for the target's keys and values are needed, but"
                f" {shown(self.num_bytes)} of {shown(self.limit or 0)} are taken"
            )
        self.num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Count so many less."""
        self.num_bytes -= num_bytes
        assert self.num_bytes >= 0


class KvMirror:
    """Positions 0..count-1 of some layers of a target's cache.

    Behind the first `NUM_SINKS`, `skipped` positions are left out: they count as if they were here.
    A view never changes under its reader: positions are only added behind it, and where some are
    replaced, so are the buffers.
    """

    def __init__(
        self,
        layers: Sequence[int],
        layout: KvLayout,
        *,
        limit: int,
        budget: ByteBudget | None = None,
    ) -> None:
        """Empty at first, for positions below `limit`; `layout` is that of all `layers`.

        Its buffers count against `budget`, which it shares with others.
        """
        if len(layers) != layout.num_layers:
            raise InvalidRequest(f"{len(layers)} layers are named, the layout has others")
        self.limit = limit
        self._layers = tuple(layers)
        self._layout = layout
        self._budget, self._buffers = budget or ByteBudget(), buffers_for(layout.device)
        # All change together, so that a reader never sees one without the others.
        self._held: tuple[int, int, list[Any]] = (0, 0, self._new_buffers(0))
        self._num_written = 0

    @property
    def count(self) -> int:
        """Number of positions."""
        return self._held[1]

    @property
    def skipped(self) -> int:
        """Number of positions that are left out."""
        return self._held[0]

    @property
    def gap(self) -> range:
        """The positions that are left out."""
        return range(NUM_SINKS, NUM_SINKS + self.skipped)

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers."""
        return self._num_slots * self._layout.bytes_per_token

    def reserve(self, count: int) -> None:
        """Make room for `count` positions, as far as the limit goes. Raises `NoRoom`."""
        needed = min(count, self.limit) - self.skipped
        if needed > self._num_slots:
            self._replace_buffers(needed)

    def write(self, start: int, values: Sequence[Array] | Array) -> None:
        """Keep `values`, of each layer [2 * kv_heads, count, head_dim], from position `start` on,
        and none behind them.

        Raises `InvalidRequest` for a gap before them, and for positions that are left out,
        `CapacityError` above the limit or the budget.
        """
        end = start + values[0].shape[1]
        if self.skipped and start < self.gap.stop and end > self.gap.start:
            raise InvalidRequest(
                f"keys and values of positions {start} to {end - 1} were sent, but"
                f" {self.skipped} from {NUM_SINKS} on are left out"
            )
        if not 0 <= start <= self.count:
            raise InvalidRequest(
                f"keys and values from position {start} on were sent, but {self.count} are held"
            )
        if end > self.limit:
            raise CapacityError(
                f"{end} positions of keys and values were sent, but the limit is {self.limit}"
            )
        self.truncate(start)
        places = slice(self._place(start), self._place(end))
        if places.stop > self._num_slots:
            most = self.limit - self.skipped
            self._replace_buffers(min(max(places.stop, self._num_slots * 3 // 2), most))
        elif places.start < self._num_written:
            self._replace_buffers(self._num_slots)
        buffers = self._held[2]
        self._num_written = places.stop
        for buffer, layer in zip(buffers, values, strict=True):
            self._buffers.write(buffer, places, layer)
        self._held = (self.skipped, self._counted(end), buffers)

    def truncate(self, count: int) -> None:
        """Forget every position from `count` on."""
        if count < self.count:
            self._held = (self.skipped, self._counted(count), self._held[2])

    def free(self, *, skipped: int = 0) -> None:
        """Forget everything and give the memory back. It may be written again, without `skipped`
        positions."""
        self._budget.give(self.num_bytes)
        self._num_written = 0
        self._held = (skipped, 0, self._new_buffers(0))

    def _counted(self, count: int) -> int:
        return self.gap.stop if count in self.gap else count

    def _place(self, position: int) -> int:
        return position if position <= NUM_SINKS else position - self.skipped

    def view(self) -> KvView:
        """Return the present positions, without a copy. Any thread."""
        skipped, count, buffers = self._held
        return KvView(count, dict(zip(self._layers, buffers, strict=True)), skipped)

    @property
    def _num_slots(self) -> int:
        return int(self._held[2][0].shape[1])

    def _new_buffers(self, num_slots: int) -> list[Any]:
        layout = self._layout
        shape = (2 * layout.num_kv_heads, num_slots, layout.head_dim)
        return [self._buffers.new(shape, layout.dtype, is_filled=True) for _ in self._layers]

    def _replace_buffers(self, num_slots: int) -> None:
        skipped, count, old = self._held
        num_slots = round_up(num_slots, BLOCK_SIZE)
        self._budget.take((num_slots - self._num_slots) * self._layout.bytes_per_token)
        new, held = self._new_buffers(num_slots), self._place(count)
        for source, into in zip(old, new, strict=True):
            into[:, :held] = source[:, :held]
        self._num_written = held
        self._held = (skipped, count, new)
