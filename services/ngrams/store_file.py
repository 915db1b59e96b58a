"""A file of n-grams, mapped into memory: what followed the last tokens of a text, and how often.

One hash table for contexts of every length: `buckets` lead to fingerprints of contexts, `starts`
to what followed each, the likeliest first. A safetensors file, so that any tool can list it.
Knows token ids; nothing of models, drafts or torch.
"""

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import WeightsError

FORMAT_VERSION = 1
MAX_CONTEXT = 8
"""Longest context that a file may have, in tokens."""
SUFFIX = ".ngrams.safetensors"
FULL = 255
"""The byte of a probability of 1."""
_TYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32}
_MASK = 0xFFFFFFFFFFFFFFFF
_FACTOR = 0x9E3779B97F4A7C15
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
_MAX_GUESSES = 8
_NEGLIGIBLE = 0.01
"""Probability below which shorter contexts are not asked any more."""


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """What a file says of itself: whose token ids it holds, and what it was counted on."""

    tokenizer_hash: str
    vocab_size: int
    max_context: int
    num_tokens: int
    """Tokens of text that were counted."""
    crc32c: int
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Tables:
    """The arrays of a file; see `NgramFile`.

    `buckets` [2^b + 1] are places in `fingerprints` [C], by the highest b bits of a context's
    hash; a fingerprint is the lowest 32. `starts` [C + 1] are places in `tokens` and
    `probabilities` [E], bytes of which `FULL` is 1.
    """

    buckets: NDArray[np.uint32]
    fingerprints: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    tokens: NDArray[np.uint16] | NDArray[np.uint32]
    probabilities: NDArray[np.uint8]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def checksum(self) -> int:
        """Return the CRC-32C of all bytes, in the order of the names above."""
        crc = 0
        for array in self.arrays().values():
            crc = google_crc32c.extend(crc, array.tobytes())
        return crc

    def check(self, vocab_size: int) -> None:
        """Raise `ValueError` unless every place leads to where it should."""
        sizes = [len(self.buckets) - 1, len(self.fingerprints), len(self.tokens)]
        if sizes[0] < 1 or sizes[0] & (sizes[0] - 1):
            raise ValueError(f"it has {sizes[0]} buckets, not a power of 2")
        for places, size in ((self.buckets, sizes[1]), (self.starts, sizes[2])):
            if places[0] != 0 or places[-1] != size or np.any(places[1:] < places[:-1]):
                raise ValueError("a table of places does not ascend to the end of its array")
        if len(self.starts) != sizes[1] + 1 or len(self.probabilities) != sizes[2]:
            raise ValueError("its arrays are not of one length")
        if sizes[2] and int(self.tokens.max()) >= vocab_size:
            raise ValueError(f"it has tokens outside 0 to {vocab_size - 1}")
        totals = np.concatenate([[0], np.cumsum(self.probabilities, dtype=np.uint64)])
        sums = totals[self.starts[1:]] - totals[self.starts[:-1]]
        if len(sums) and int(sums.max()) > FULL:
            raise ValueError("the probabilities behind a context add up to more than 1")


class NgramFile:
    """A `core.ngram_sources.NgramStore` in a file. Immutable; processes share its pages."""

    def __init__(self, path: Path) -> None:
        """Raises `WeightsError` for what is no whole file of this format."""
        self.path = path
        try:
            self.header, tables = _read(path)
            self.num_bytes = path.stat().st_size
            tables.check(self.header.vocab_size)
            if tables.checksum() != self.header.crc32c:
                raise ValueError("its checksum is another one")
        except _BROKEN as error:
            raise WeightsError(f"the n-grams in {path} can't be read ({error})") from None
        self.num_contexts = len(tables.fingerprints)
        self._shift = 64 - (len(tables.buckets) - 1).bit_length() + 1
        self._buckets = memoryview(tables.buckets)
        self._fingerprints = memoryview(tables.fingerprints)
        self._starts = memoryview(tables.starts)
        self._tokens = memoryview(tables.tokens)
        self._probabilities = memoryview(tables.probabilities)

    def after(self, latest: Sequence[int]) -> Sequence[tuple[int, float]]:
        """See `core.ngram_sources.NgramStore.after`.

        Longer contexts come first; what is left of their probability goes to shorter ones
        (interpolated absolute discounting, Chen and Goodman 1999, 3.4).
        """
        guesses: dict[int, float] = {}
        rest = 1.0
        for code in reversed(context_hashes(latest[: self.header.max_context])):
            at = self._place(code)
            if at is None:
                continue
            total = 0
            for place in range(self._starts[at], self._starts[at + 1]):
                share = self._probabilities[place]
                total += share
                token = self._tokens[place]
                guesses[token] = guesses.get(token, 0.0) + rest * share / FULL
            rest *= 1 - total / FULL
            if rest < _NEGLIGIBLE:
                break
        return sorted(guesses.items(), key=lambda one: -one[1])[:_MAX_GUESSES]

    def _place(self, code: int) -> int | None:
        """Return the number of the context with this hash; None where it is not there."""
        bucket, fingerprint = code >> self._shift, code & 0xFFFFFFFF
        for at in range(self._buckets[bucket], self._buckets[bucket + 1]):
            if self._fingerprints[at] == fingerprint:
                return at
        return None


def context_hashes(latest: Sequence[int]) -> list[int]:
    """Return the 64-bit hashes of the contexts of 1, 2, … tokens, the newest token first."""
    code, codes = 0, []
    for token in latest:
        code = (code ^ (token + 1)) * _FACTOR & _MASK
        code ^= code >> 29
        codes.append(code)
    return codes


def next_hashes(codes: NDArray[np.uint64], older: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of contexts that are one token longer: those of `context_hashes`."""
    codes = (codes ^ (older + np.uint64(1))) * np.uint64(_FACTOR)
    return codes ^ (codes >> np.uint64(29))


def _read(path: Path) -> tuple[StoreHeader, Tables]:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(mapped[:8], "little")
    if not 8 < start <= len(mapped):
        raise ValueError("its header is not within the file")
    about = json.loads(mapped[8:start])
    header = StoreHeader(**json.loads(about["__metadata__"]["ngrams"]))
    if header.format_version != FORMAT_VERSION:
        raise ValueError(f"its format is {header.format_version}, not {FORMAT_VERSION}")
    if not 1 <= header.max_context <= MAX_CONTEXT:
        raise ValueError(f"its contexts have {header.max_context} tokens, not 1 to {MAX_CONTEXT}")
    arrays = {name: _array(mapped, start, about[name]) for name in Tables.__slots__}
    return header, Tables(**arrays)


def _array(mapped: mmap.mmap, start: int, about: dict[str, Any]) -> NDArray[Any]:
    first, last = (int(number) for number in about["data_offsets"])
    if not 0 <= first <= last <= len(mapped) - start:
        raise ValueError("an array lies outside the file")
    return np.frombuffer(memoryview(mapped)[start + first : start + last], _TYPES[about["dtype"]])
