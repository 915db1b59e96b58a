"""Which pages of a pool are free, in runs of neighbours. Pure; knows no memory."""

from bisect import bisect_left


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
            pages += self._cut(self._run_at(after + 1), count)
        while len(pages) < count:
            missing = count - len(pages)
            fitting = [at for at, (_, size) in enumerate(self._runs) if size >= missing]
            sizes = [size for _, size in self._runs]
            best = min(fitting, key=sizes.__getitem__) if fitting else sizes.index(max(sizes))
            pages += self._cut(best, missing)
        self._num_free -= count
        return pages

    def give(self, page: int) -> None:
        """Take a page back."""
        at = bisect_left(self._runs, (page, 0))
        start, size = page, 1
        if at < len(self._runs) and self._runs[at][0] == page + 1:
            size += self._runs.pop(at)[1]
        if at > 0 and sum(self._runs[at - 1]) == page:
            at -= 1
            start, before = self._runs.pop(at)
            size += before
        self._runs.insert(at, (start, size))
        self._num_free += 1

    def _run_at(self, page: int) -> int | None:
        """The run that begins with a page, if one does."""
        at = bisect_left(self._runs, (page, 0))
        found = at < len(self._runs) and self._runs[at][0] == page
        return at if found else None

    def _cut(self, at: int | None, count: int) -> list[int]:
        """Up to `count` pages off the front of a run."""
        if at is None:
            return []
        start, size = self._runs[at]
        taken = min(size, count)
        if taken == size:
            del self._runs[at]
        else:
            self._runs[at] = (start + taken, size - taken)
        return list(range(start, start + taken))
