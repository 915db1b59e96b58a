"""Keys and values of one session: a table of pages.

Slots are those of the pool's buffers; position i of the session sits at slot i % 128 of its page
i // 128. A page that others use as well is copied before anything in it changes.
"""

from collections.abc import Sequence
from typing import Any

from slipstream.core.errors import CapacityError, InvalidRequest, ModelMismatch
from slipstream.models.dtypes import CPU, Array
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.models.scorer import KvView


def view_layout(layout: KvLayout, layers: Sequence[int]) -> KvLayout:
    """Return the layout of a view of some numbers of a layout: keys and values, or hidden states.

    Raises `InvalidRequest` for none, for one that is not there or there twice, and for both kinds,
    `ModelMismatch` for hidden states that the target does not keep.
    """
    count, shown = layout.num_layers, _named(layers)
    states = {layer - count for layer in layers if layer >= count}
    if not layers:
        raise InvalidRequest("keys and values of no layer were asked for, but at least 1 is needed")
    if len(set(layers)) != len(layers):
        raise InvalidRequest(f"layers {shown} were asked for, but each can be sent once")
    for layer in layers:
        if not 0 <= layer <= 2 * count:
            raise InvalidRequest(f"layer {layer} was asked for, but the model has {count}")
    if not states:
        return KvLayout(len(layers), layout.num_kv_heads, layout.head_dim, layout.dtype, CPU)
    if len(states) < len(layers):
        raise InvalidRequest(
            f"layers {shown} were asked for, but those below {count} are keys and values, the"
            " others hidden states, and a reader has one kind"
        )
    if not states <= {*layout.hidden_layers}:
        needed = ",".join(map(str, sorted(states | {*layout.hidden_layers})))
        raise ModelMismatch(
            f"the draft reads hidden states of layers {_named(sorted(states))}, but the target"
            f" keeps those of {_named(layout.hidden_layers) or 'none'}: start the target with"
            f" --hidden-layers {needed}"
        )
    return KvLayout(len(layers), 1, layout.hidden_size // 2, layout.dtype, CPU)


def _named(layers: Sequence[int]) -> str:
    """Return layers as text, up to eight."""
    return ", ".join(map(str, layers[:8])) + (", ..." if len(layers) > 8 else "")


class KvCache:
    """One session's pages in a pool, and how many positions of them hold final tokens.

    What lies behind `count` is scratch for the tokens of one forward.
    """

    def __init__(
        self, pool: KvPool, *, limit: int, pages: Sequence[int] = (), count: int = 0
    ) -> None:
        """Up to `limit` positions. The session becomes a user of `pages`, which hold the first
        `count` positions already."""
        self.pool = pool
        self.limit = limit
        self.count = count
        self.pages = list(pages)
        for page in pages:
            pool.share(page)
        self._num_straight = 0
        self._in_place: dict[int, Any] = {}
        self._table: Array | None = None
        self._table_address: int | None = None
        self._measure()

    @property
    def num_slots(self) -> int:
        """Positions that there are pages for."""
        return len(self.pages) * BLOCK_SIZE

    @property
    def num_bytes(self) -> int:
        """Bytes of its pages, those shared with others included."""
        return len(self.pages) * self.pool.layout.bytes_per_page

    def reserve(self, num_slots: int) -> None:
        """Take pages for that many positions.

        Raises `CapacityError` above the limit and what `KvPool.take` raises; then nothing changes.
        """
        if num_slots > self.limit:
            raise CapacityError(
                f"{num_slots} cache slots are needed, but the limit is {self.limit}"
            )
        missing = round_up(num_slots, BLOCK_SIZE) // BLOCK_SIZE - len(self.pages)
        if missing > 0:
            last = self.pages[-1] if self.pages else None
            self.pages += self.pool.take(missing, after=last)
            self._measure()

    def own(self, stop: int) -> None:
        """Own the pages of positions count..stop-1, so that they may be written.

        Raises `NoRoom` where a copy of a shared page finds no place.
        """
        for index in range(self.count // BLOCK_SIZE, round_up(stop, BLOCK_SIZE) // BLOCK_SIZE):
            page = self.pages[index]
            if self.pool.num_users(page) > 1:
                (own,) = self.pool.take(1)
                first, into = page * BLOCK_SIZE, own * BLOCK_SIZE
                held = min(self.count - index * BLOCK_SIZE, BLOCK_SIZE)
                if held > 0:
                    self.pool.copy(range(first, first + held), range(into, into + held))
                self.pool.drop(page)
                self.pages[index] = own
                self._measure()

    def slot(self, position: int) -> int:
        """Return where a position is in the pool's buffers."""
        return self.pages[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    def base(self, width: int) -> int | None:
        """The first of `width` neighbouring slots that hold the first positions in order; None
        where they are no neighbours."""
        if width > self._num_straight * BLOCK_SIZE:
            return None
        return self.pages[0] * BLOCK_SIZE

    def table(self) -> Array:
        """Slots [num_slots] int64 of the positions in order."""
        if self._table is None:
            self._table = self.pool.slots(self.pages)
        return self._table

    def table_address(self) -> int:
        """Return the address of the table on the host."""
        if self._table_address is None:
            self._table_address = int(self.table().ctypes.data)
        return self._table_address

    def gather(self, layer: int, start: int, stop: int) -> Any:
        """Positions start..stop-1 of a layer or a hidden state, [rows, n, width] as in `KvLayout`;
        copied if need be."""
        buffer, base = self.pool.layer(layer), self.base(stop)
        if base is not None:
            own = buffer[:, base + start : base + stop]
        else:
            own = self.pool.buffers.read(buffer, self.table()[start:stop])
        if self.pool.peers is None or layer >= self.pool.layout.num_layers:
            return own
        return self.pool.peers.heads(own, self.pages, layer, range(start, stop))

    def truncate(self, count: int) -> None:
        """Forget every position from `count` on."""
        self.count = min(self.count, count)

    def keep(self, slots: Sequence[int]) -> None:
        """Make the tokens in `slots` the positions behind `count`, moved where needed."""
        end = self.count + len(slots)
        self.reserve(end)
        goal = [self.slot(position) for position in range(self.count, end)]
        moves = [(a, b) for a, b in zip(slots, goal, strict=True) if a != b]
        if moves:
            self.pool.copy([a for a, _ in moves], [b for _, b in moves])
        self.count = end

    def view(self, layers: Sequence[int]) -> KvView:
        """The final positions of some layers, without a copy on a device, and elsewhere where the
        pages are neighbours."""
        pool = self.pool
        is_whole = pool.peers is None or min(layers, default=0) >= pool.layout.num_layers
        if is_whole and pool.layout.device != CPU:
            buffers = {layer: pool.layer(layer) for layer in layers}
            return KvView(self.count, buffers, pages=tuple(self.pages))
        if pool.peers is not None or self.base(self.num_slots) is None:
            own = {layer: self.gather(layer, 0, self.count) for layer in layers}
            return KvView(self.count, own)
        if [*self._in_place] != [*layers]:
            self._in_place = {layer: self.gather(layer, 0, self.num_slots) for layer in layers}
        return KvView(self.count, self._in_place)

    def trim(self) -> None:
        """Give back the pages behind the final positions."""
        needed = round_up(self.count, BLOCK_SIZE) // BLOCK_SIZE
        for page in self.pages[needed:]:
            self.pool.drop(page)
        del self.pages[needed:]
        self._measure()

    def close(self) -> None:
        """Give all pages back. Again is fine."""
        self.truncate(0)
        self.trim()

    def _measure(self) -> None:
        """Note what follows from the pages."""
        self._in_place = {}
        self._table = self._table_address = None
        first = self.pages[0] if self.pages else 0
        straight = (index for index, page in enumerate(self.pages) if page != first + index)
        self._num_straight = next(straight, len(self.pages))
