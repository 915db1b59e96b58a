"""Pages of keys and values that somebody may begin with again, found by the tokens they hold.

A tree of pages: below a page of 128 tokens hang those that have followed it. The last page of a
text may hold fewer. Every page here has one more user, this cache, until it is evicted; the least
recently used go first, the ends of texts before their beginnings. Knows no sessions.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.models.pool import BLOCK_SIZE, KvPool

_MAX_COMPARED = 64
"""Pages below one whose tokens are compared one by one, the most recent ones."""


@dataclass(eq=False, slots=True)
class _Entry:
    tokens: tuple[int, ...]
    page: int
    above: "_Entry | None"
    below: dict[tuple[int, ...], "_Entry"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """What there is of a text: `pages` with its first `count` tokens; the last may hold more."""

    pages: tuple[int, ...] = ()
    count: int = 0


class PrefixCache:
    """Up to `max_pages` pages of a pool, each with the tokens that it and those before it hold."""

    def __init__(self, pool: KvPool, *, max_pages: int) -> None:
        self._pool = pool
        self._max_pages = max_pages
        self._first: dict[tuple[int, ...], _Entry] = {}
        self._recent: OrderedDict[_Entry, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def num_idle(self) -> int:
        """Pages that nobody else uses."""
        return sum(self._pool.num_users(entry.page) == 1 for entry in self._recent)

    def match(self, tokens: Sequence[int]) -> Match:
        """The longest beginning of `tokens` that is held."""
        path: list[_Entry] = []
        count = 0
        below = self._first
        while (entry := below.get(tuple(tokens[count : count + BLOCK_SIZE]))) is not None:
            path.append(entry)
            count += len(entry.tokens)
            below = entry.below
        nearest, same = _nearest(below, tokens[count : count + BLOCK_SIZE])
        if nearest is not None:
            path.append(nearest)
            count += same
        self._touch(path)
        return Match(tuple(entry.page for entry in path), count)

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Remember `pages`, which hold exactly `tokens`; those that are known already are not
        needed twice."""
        path: list[_Entry] = []
        below, above = self._first, None
        for start, page in zip(range(0, len(tokens), BLOCK_SIZE), pages, strict=True):
            key = tuple(tokens[start : start + BLOCK_SIZE])
            entry = _holder(below, key)
            if entry is None:
                self._forget_beginning(below, key)
                entry = _Entry(key, page, above)
                self._pool.share(page)
                below[key] = entry
            path.append(entry)
            below, above = entry.below, entry
        self._touch(path)
        while len(self._recent) > self._max_pages:
            if not self.evict():
                return

    def evict(self) -> bool:
        """Let go of the page that was not used for longest and has none below it; whether there
        was one that nobody else uses."""
        for entry in self._recent:
            if not entry.below and self._pool.num_users(entry.page) == 1:
                self._remove(entry)
                return True
        return False

    def _forget_beginning(self, below: dict[tuple[int, ...], _Entry], key: tuple[int, ...]) -> None:
        """Drop a page of which the new one holds all, and more."""
        for size in range(1, len(key)):
            entry = below.get(key[:size])
            if entry is not None:
                self._remove(entry)

    def _remove(self, entry: _Entry) -> None:
        siblings = self._first if entry.above is None else entry.above.below
        del siblings[entry.tokens]
        del self._recent[entry]
        self._pool.drop(entry.page)

    def _touch(self, path: Sequence[_Entry]) -> None:
        # The end first: a beginning is never older than what hangs below it.
        for entry in reversed(path):
            self._recent[entry] = None
            self._recent.move_to_end(entry)


def _holder(below: dict[tuple[int, ...], _Entry], key: tuple[int, ...]) -> _Entry | None:
    """The page that holds exactly these tokens, or begins with them where the text ends."""
    entry = below.get(key)
    if entry is None and len(key) < BLOCK_SIZE:
        nearest, same = _nearest(below, key)
        entry = nearest if same == len(key) else None
    return entry


def _nearest(
    below: dict[tuple[int, ...], _Entry], tokens: Sequence[int]
) -> tuple[_Entry | None, int]:
    """The page with the longest common beginning, and how many tokens that is."""
    best: _Entry | None = None
    most = 0
    for _, entry in zip(range(_MAX_COMPARED), reversed(below.values()), strict=False):
        same = _num_same(entry.tokens, tokens)
        if same > most:
            best, most = entry, same
    return best, most


def _num_same(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
