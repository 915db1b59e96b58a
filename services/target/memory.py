"""Room for sessions' keys and values: who gets pages of the pool, and what stays when they go.

A session gets room for everything that its request may become, or none: what has begun can end.
Whoever goes leaves the pages behind for those who begin alike; they are reused until the room is
needed. Knows no requests and no model.
"""

from collections.abc import Sequence

from slipstream.core.errors import NoRoom
from slipstream.models.cache import KvCache
from slipstream.models.pool import BLOCK_SIZE, KvPool, round_up
from slipstream.target.prefixes import Match, PrefixCache


class KvMemory:
    """The pages of one engine. `limit` is the longest session there can be."""

    def __init__(self, pool: KvPool, *, limit: int, max_cached_pages: int | None = None) -> None:
        """`max_cached_pages` bounds what is kept of nobody's; None is the whole pool, 0 nothing."""
        self.pool = pool
        self._limit = limit
        most = pool.num_pages if max_cached_pages is None else max_cached_pages
        self._prefixes = PrefixCache(pool, max_pages=most)
        self._keeps = most > 0

    @property
    def num_cached_bytes(self) -> int:
        """Bytes of pages that are remembered, those in use included."""
        return len(self._prefixes) * self.pool.layout.bytes_per_page

    @property
    def num_idle_bytes(self) -> int:
        """Bytes of pages that are remembered, and that nobody uses."""
        return self._prefixes.num_idle * self.pool.layout.bytes_per_page

    def open(self, tokens: Sequence[int], num_slots: int) -> KvCache:
        """Room for `num_slots` positions, with what is known of all `tokens` but the last.

        Raises `NoRoom` when others have to go first, `CapacityError` when it can never be.
        """
        match = self._prefixes.match(tokens[:-1]) if self._keeps else Match()
        cache = KvCache(self.pool, limit=self._limit, pages=match.pages, count=match.count)
        try:
            self.extend(cache, num_slots, count=match.count)
        except BaseException:
            cache.close()
            raise
        return cache

    def extend(self, cache: KvCache, num_slots: int, *, count: int) -> None:
        """Room for `num_slots` positions in all, of which the first `count` stay as they are.

        The rest may be written without further room. Raises as `open` does, and changes nothing.
        """
        behind = cache.pages[count // BLOCK_SIZE :]
        num_copied = sum(self.pool.num_users(page) > 1 for page in behind)
        num_new = round_up(num_slots, BLOCK_SIZE) // BLOCK_SIZE - len(cache.pages)
        self._free(num_copied + max(num_new, 0))
        cache.reserve(num_slots)
        cache.truncate(count)
        cache.own(cache.num_slots)

    def remember(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Let others begin with the whole pages of a session that holds `tokens` and goes on."""
        num_pages = min(cache.count, len(tokens)) // BLOCK_SIZE
        if num_pages and self._keeps:
            self._prefixes.insert(tokens[: num_pages * BLOCK_SIZE], cache.pages[:num_pages])

    def close(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Give a session's pages back, and remember what they hold of its `tokens`."""
        held = tokens[: cache.count]
        cache.truncate(len(held))
        cache.trim()
        if held and self._keeps:
            self._prefixes.insert(held, cache.pages)
        cache.close()

    def _free(self, count: int) -> None:
        """Have so many free pages. Evicts only if that helps."""
        missing = count - self.pool.num_free
        if 0 < missing <= self._prefixes.num_idle and count <= self.pool.num_pages:
            while self.pool.num_free < count and self._prefixes.evict():
                pass
        elif missing > 0 and count <= self.pool.num_pages:
            raise NoRoom(
                f"{count * BLOCK_SIZE} slots of keys and values are needed, but others use all but"
                f" {(self.pool.num_free + self._prefixes.num_idle) * BLOCK_SIZE}"
            )
