"""Memory for sessions' keys and values: pages of the pool, and the prefix cache.

A session gets room for everything that its request may become, or none: what has begun can end.
Pages of a session that leaves stay in the cache until the room is needed.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import NoRoom
from slipstream.core.sequence import common_prefix
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool, round_up

_MAX_COMPARED = 64
"""Pages below one whose tokens are compared one by one, the most recent ones."""


@dataclass(eq=False, slots=True)
class _CachedPage:
    tokens: tuple[int, ...]
    page: int
    above: "_CachedPage | None"
    below: dict[tuple[int, ...], "_CachedPage"] = field(default_factory=dict)


class PrefixCache:
    """Up to `max_pages` pages of a pool, found by the tokens that they and those before them hold.

    A tree of pages: below a page of 128 tokens hang those that have followed it. The last page of a
    text may hold fewer. Each page has one more user, this cache, until it is evicted; the least
    recently used go first, the ends of texts before their beginnings.
    """

    def __init__(self, pool: KvPool, *, max_pages: int) -> None:
        self._pool = pool
        self._max_pages = max_pages
        self._first: dict[tuple[int, ...], _CachedPage] = {}
        self._recent: OrderedDict[_CachedPage, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def num_idle(self) -> int:
        """Pages that no session uses."""
        return sum(self._pool.num_users(cached.page) == 1 for cached in self._recent)

    def match(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the pages of the longest beginning of `tokens` that is held, and its length; the
        last page may hold more."""
        path: list[_CachedPage] = []
        count = 0
        below = self._first
        while (cached := below.get(tuple(tokens[count : count + BLOCK_SIZE]))) is not None:
            path.append(cached)
            count += len(cached.tokens)
            below = cached.below
        nearest, num_same = _nearest(below, tokens[count : count + BLOCK_SIZE])
        if nearest is not None:
            path.append(nearest)
        self._touch(path)
        return tuple(cached.page for cached in path), count + num_same

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Remember `pages`, which hold exactly `tokens`, but for those that are held already."""
        path: list[_CachedPage] = []
        below, above = self._first, None
        for start, page in zip(range(0, len(tokens), BLOCK_SIZE), pages, strict=True):
            key = tuple(tokens[start : start + BLOCK_SIZE])
            cached = _holder(below, key)
            if cached is None:
                beginnings = (key[:size] for size in range(1, len(key)))
                for shorter in [below[one] for one in beginnings if one in below]:
                    self._remove(shorter)  # the new page holds all of it, and more
                cached = _CachedPage(key, page, above)
                self._pool.share(page)
                below[key] = cached
            path.append(cached)
            below, above = cached.below, cached
        self._touch(path)
        while len(self._recent) > self._max_pages:
            if not self.evict():
                return

    def evict(self) -> bool:
        """Let go of the page that was not used for longest, has none below it and no other user;
        return whether there was one."""
        for cached in self._recent:
            if not cached.below and self._pool.num_users(cached.page) == 1:
                self._remove(cached)
                return True
        return False

    def _remove(self, cached: _CachedPage) -> None:
        siblings = self._first if cached.above is None else cached.above.below
        del siblings[cached.tokens]
        del self._recent[cached]
        self._pool.drop(cached.page)

    def _touch(self, path: Sequence[_CachedPage]) -> None:
        # The end first: a beginning is never older than what hangs below it.
        for cached in reversed(path):
            self._recent[cached] = None
            self._recent.move_to_end(cached)


class KvMemory:
    """The pages of one engine. `limit` is the longest session there can be."""

    def __init__(self, pool: KvPool, *, limit: int, max_cached_pages: int | None = None) -> None:
        """`max_cached_pages` bounds the prefix cache; None is the whole pool, 0 turns it off."""
        self.pool = pool
        self._limit = limit
        most = pool.num_pages if max_cached_pages is None else max_cached_pages
        self._prefixes = PrefixCache(pool, max_pages=most)
        self._keeps = most > 0

    @property
    def num_cached_bytes(self) -> int:
        """Bytes of pages in the prefix cache, those in use included."""
        return len(self._prefixes) * self.pool.layout.bytes_per_page

    def open(self, tokens: Sequence[int], num_slots: int, *, is_empty: bool = False) -> KvCache:
        """Return room for `num_slots` positions, with what is cached of all `tokens` but the last,
        unless it is to be empty.

        Raises `NoRoom` when others have to go first, `CapacityError` when it can never be.
        """
        is_new = is_empty or not self._keeps
        pages, count = ((), 0) if is_new else self._prefixes.match(tokens[:-1])
        cache = KvCache(self.pool, limit=self._limit, pages=pages, count=count)
        try:
            self.extend(cache, num_slots, count=count)
        except BaseException:
            cache.close()
            raise
        return cache

    def extend(self, cache: KvCache, num_slots: int, *, count: int) -> None:
        """Make room for `num_slots` positions in all, of which the first `count` stay as they are.

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
        """Free pages until there are so many. Evicts only if that helps."""
        missing = count - self.pool.num_free
        if missing <= 0 or count > self.pool.num_pages:  # what can never be is the cache's error
            return
        num_idle = self._prefixes.num_idle
        if missing > num_idle:
            raise NoRoom(
                f"{count * BLOCK_SIZE} slots of keys and values are needed, but others use all but"
                f" {(self.pool.num_free + num_idle) * BLOCK_SIZE}"
            )
        while self.pool.num_free < count and self._prefixes.evict():
            pass


def _holder(below: dict[tuple[int, ...], _CachedPage], key: tuple[int, ...]) -> _CachedPage | None:
    """Return the page that holds exactly these tokens, or begins with them where the text ends."""
    cached = below.get(key)
    if cached is None and len(key) < BLOCK_SIZE:
        nearest, num_same = _nearest(below, key)
        cached = nearest if num_same == len(key) else None
    return cached


def _nearest(
    below: dict[tuple[int, ...], _CachedPage], tokens: Sequence[int]
) -> tuple[_CachedPage | None, int]:
    """Return the page with the longest common beginning, if any, and how many tokens that is."""
    best: _CachedPage | None = None
    most = 0
    key = tuple(tokens)
    for _, cached in zip(range(_MAX_COMPARED), reversed(below.values()), strict=False):
        num_same = common_prefix(cached.tokens, key)
        if num_same > most:
            best, most = cached, num_same
    return best, most
