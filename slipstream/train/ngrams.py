"""Counts of a target's text, as an n-gram store: after which tokens, which one, how likely.

Interpolated absolute discounting with counts of one, two and more (Chen and Goodman 1999, 3.4):
a context keeps what was seen behind it at a discount, the rest goes to the context that is one
token shorter. Contexts that were seen too seldom are left out, the longest first.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from slipstream.core.errors import TrainingError
from slipstream.files import write_whole
from slipstream.ngrams.store_file import (
    ARRAYS,
    FACTOR,
    FULL,
    MAX_CONTEXT,
    MAX_FOLLOWING,
    SHIFT,
    StoreHeader,
    checksum,
)
from slipstream.options import Bounded, option
from slipstream.train.data import Document

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]
"""Called with (contexts' lengths done, lengths in all)."""
_LEAST = 0.02
"""Probability of one that is kept."""
_MAX_LEAST_COUNT = 1 << 20


@dataclass(frozen=True, slots=True)
class CountSettings(Bounded):
    """Contexts to count: those that were seen `min_count` times or more, the longest one time
    more."""

    max_context: int = option(3, "Longest context, in tokens.", least=1, most=MAX_CONTEXT)
    min_count: int = option(2, "Contexts that were seen less often are left out.", least=1)
    max_mb: float = option(
        8.0, "Largest file, in MiB; the rarest contexts are left out for it.", least=2**-10
    )

    def least(self, length: int, min_count: int) -> int:
        """Return how often a context of this length must be seen; the longest, one time more."""
        return min_count + (length == self.max_context > 1)


@dataclass(frozen=True, slots=True)
class Counted:
    """All contexts of one length: their hashes [C], how often each was seen [C], where what
    followed starts [C + 1], and that [E] with its discounted probability [E]."""

    codes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    def kept(self, min_count: int) -> "Counted":
        """Return the contexts seen so often, with what is likely enough behind them."""
        sizes = np.diff(self.starts)
        context = np.repeat(np.arange(len(self.codes)), sizes)
        order = np.lexsort((self.tokens, -self.probabilities, context))
        rank = np.arange(len(order)) - np.repeat(self.starts[:-1], sizes)
        is_kept = (rank < MAX_FOLLOWING) & (self.probabilities[order] >= _LEAST)
        is_kept &= self.counts[context] >= min_count
        chosen = order[is_kept]
        numbers = np.bincount(context[is_kept], minlength=len(self.codes))
        used = np.flatnonzero(numbers)
        return Counted(
            self.codes[used],
            self.counts[used],
            np.concatenate([[0], np.cumsum(numbers[used])]),
            self.tokens[chosen],
            self.probabilities[chosen],
        )


def count(
    documents: Sequence[Document], settings: CountSettings, *, progress: Progress
) -> list[Counted]:
    """Count what was generated, by contexts of every length; prompts are contexts only.

    Contexts that were seen too seldom for any file are left out.
    """
    ids, ends = _generated(documents, settings.max_context)
    if not len(ends):
        raise TrainingError("the data has no generated tokens to count")
    codes = np.zeros(len(ends), np.uint64)
    tables = []
    for length in range(1, settings.max_context + 1):
        codes ^= ids[ends - length] + np.uint64(1)
        codes *= np.uint64(FACTOR)
        codes ^= codes >> np.uint64(SHIFT)
        counted = _counted(codes, ids[ends].astype(np.int64))
        tables.append(counted.kept(settings.least(length, settings.min_count)))
        progress(length, settings.max_context)
    return tables


def fitting(tables: Sequence[Counted], settings: CountSettings, vocab_size: int) -> Arrays:
    """Return the arrays of a file of at most `max_mb`, with as low a least count as fits."""
    least, most = settings.min_count, round(settings.max_mb * 2**20)
    while least < _MAX_LEAST_COUNT:
        parts = [
            table.kept(settings.least(length, least)) for length, table in enumerate(tables, 1)
        ]
        packed = _packed(parts, vocab_size)
        if sum(array.nbytes for array in packed.values()) <= most:
            return packed
        least += max(1, least // 4)
    raise TrainingError(f"no table of n-grams fits {most} bytes")


def write_store(path: Path, arrays: Arrays, header: StoreHeader) -> None:
    """Write a file that `ngrams.store_file.NgramFile` reads; the checksum is filled in."""
    crc = checksum([arrays[name].tobytes() for name in ARRAYS])
    metadata = {"format": "np", "ngrams": json.dumps(asdict(replace(header, crc32=crc)))}
    write_whole(path, save(arrays, metadata=metadata), mode=0o644)


def _generated(
    documents: Sequence[Document], max_context: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return all ids with a gap before each document, and the places of generated ones."""
    gap = np.full(max_context, 0xFFFFFFFF, np.uint32)
    ids, places, size = [], [], 0
    for document in documents:
        ids += [gap, document.ids.astype(np.uint32)]
        first = size + max_context
        places.append(np.arange(first + document.num_prompt, first + len(document.ids)))
        size = first + len(document.ids)
    return np.concatenate(ids), np.concatenate(places)


def _counted(codes: NDArray[np.uint64], tokens: NDArray[np.int64]) -> Counted:
    order = np.lexsort((tokens, codes))
    codes, tokens = codes[order], tokens[order]
    is_new = np.ones(len(codes), bool)
    is_new[1:] = (codes[1:] != codes[:-1]) | (tokens[1:] != tokens[:-1])
    first = np.flatnonzero(is_new)
    counts = np.diff(np.append(first, len(codes)))
    codes, tokens = codes[first], tokens[first]
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    totals = np.add.reduceat(counts, starts)
    sizes = np.diff(np.append(starts, len(codes)))
    probabilities = (counts - _discounts(counts)) / np.repeat(totals, sizes)
    return Counted(codes[starts], totals, np.append(starts, len(codes)), tokens, probabilities)


def _discounts(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what is taken off each count, by how many counts there are of 1 to 4."""
    of = [int((counts == number).sum()) for number in range(1, 5)]
    share = of[0] / max(of[0] + 2 * of[1], 1)
    taken = [0.0]
    for n in (1, 2, 3):
        estimate = n - (n + 1) * share * of[n] / max(of[n - 1], 1)
        # A larger count keeps more than a smaller one.
        taken.append(min(max(estimate, 0.1), taken[-1] + 0.9))
    return np.asarray(taken)[np.minimum(counts, 3)]


def _packed(parts: Sequence[Counted], vocab_size: int) -> Arrays:
    codes = np.concatenate([part.codes for part in parts])
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    bits = max(len(codes).bit_length() - 1, 1)
    order = np.argsort(codes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes[order])])
    entries = np.argsort(np.repeat(np.argsort(order), sizes), kind="stable")
    tokens = np.concatenate([part.tokens for part in parts])[entries]
    probabilities = np.concatenate([part.probabilities for part in parts])[entries]
    buckets = np.searchsorted(
        codes[order] >> np.uint64(64 - bits), np.arange(2**bits + 1, dtype=np.uint64)
    )
    arrays = (
        buckets.astype(np.uint32),
        (codes[order] & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        starts.astype(np.uint32),
        tokens.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32),
        np.maximum(np.floor(probabilities * FULL), 1).astype(np.uint8),
    )
    return dict(zip(ARRAYS, arrays, strict=True))
