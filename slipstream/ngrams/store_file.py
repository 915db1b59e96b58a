"""Files of n-grams, mapped into memory: what followed the last tokens of a text, and how often.

One hash table for contexts of every length: `buckets` [2^b + 1] lead from the highest b bits of a
context's hash to `fingerprints` [C], the lowest 32 of them, and `starts` [C + 1] from a context to
what followed it, the likeliest first: `tokens` [E] and `probabilities` [E], bytes of which `FULL`
is 1. A safetensors file, so that any tool can list it.
"""

import mmap
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal

from slipstream.core.errors import InvalidRequest, ModelMismatch, WeightsError
from slipstream.files import parse_json, path_of

FORMAT_VERSION = 1
ARRAYS = ("buckets", "fingerprints", "starts", "tokens", "probabilities")
MAX_CONTEXT = 8
"""Longest context that a file may have, in tokens."""
MAX_FOLLOWING = 8
"""Most tokens behind a context."""
SUFFIX = ".ngrams.safetensors"
AUTO, NONE = "auto", "none"
_SHIPPED = Path(__file__).parent.parent / "models" / "weights"
FULL = 255
"""The byte of a probability of 1."""
MASK = 0xFFFFFFFFFFFFFFFF
FACTOR = 0x9E3779B97F4A7C15
SHIFT = 29
_FORMATS: dict[str, Literal["B", "H", "I"]] = {"U8": "B", "U16": "H", "U32": "I"}
_TYPES = dict(zip(ARRAYS, ({"U32"}, {"U32"}, {"U32"}, {"U16", "U32"}, {"U8"}), strict=True))
_BROKEN = (OSError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError)
_NEGLIGIBLE = 0.01
"""Probability left over below which shorter contexts are not looked up."""
_LONGEST_BUCKET = 64


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """Header of a file: the tokenizer of its token ids, and how much text was counted."""

    tokenizer_hash: str
    vocab_size: int
    max_context: int
    num_tokens: int
    crc32: int = 0
    """CRC-32 of all arrays, in the order of `ARRAYS`."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for field in fields(self):
            if type(getattr(self, field.name)) is not (
                str if field.name == "tokenizer_hash" else int
            ):
                raise ValueError(f"its {field.name} is {getattr(self, field.name)!r:.80}")
        if self.format_version != FORMAT_VERSION:
            raise ValueError(f"its format is {self.format_version}, not {FORMAT_VERSION}")
        if not 1 <= self.max_context <= MAX_CONTEXT:
            raise ValueError(f"its contexts have {self.max_context} tokens, not 1 to {MAX_CONTEXT}")


class NgramFile:
    """A `core.draft.ngram.NgramStore` in a file. Immutable; processes share its pages, and a lookup
    reads a bounded part of it, whatever it holds."""

    def __init__(self, path: Path) -> None:
        """Raises `WeightsError` for what is no whole file of this format."""
        self.path = path
        try:
            self.num_bytes = path.stat().st_size
            self.header, arrays = _read(path)
            self._buckets, self._fingerprints, self._starts, self._tokens, self._shares = arrays
            self._bits = _bits(arrays)
        except _BROKEN as error:
            raise WeightsError(f"the n-grams in {path} can't be read ({error})") from None

    @property
    def num_contexts(self) -> int:
        """Return how many contexts have something behind them."""
        return len(self._fingerprints)

    def after(self, latest: Sequence[int]) -> Sequence[tuple[int, float]]:
        """See `core.draft.ngram.NgramStore.after`.

        Longer contexts come first; what is left of their probability goes to shorter ones
        (interpolated absolute discounting, Chen and Goodman 1999, 3.4).
        """
        guesses: dict[int, float] = {}
        rest = 1.0
        for code in reversed(context_hashes(latest[: self.header.max_context])):
            index = self._find(code)
            if index is None:
                continue
            begin, end = self._starts[index], self._starts[index + 1]
            end = min(end, begin + MAX_FOLLOWING, len(self._tokens))
            total = 0
            for place in range(begin, end):
                share, token = min(self._shares[place], FULL - total), self._tokens[place]
                if token < self.header.vocab_size:
                    guesses[token] = guesses.get(token, 0.0) + rest * share / FULL
                total += share
            rest *= 1 - total / FULL
            if rest < _NEGLIGIBLE:
                break
        return sorted(guesses.items(), key=lambda one: -one[1])[:MAX_FOLLOWING]

    def _find(self, code: int) -> int | None:
        """Return the number of the context with this hash; None where it is not there."""
        bucket, fingerprint = code >> (64 - self._bits), code & 0xFFFFFFFF
        begin, end = self._buckets[bucket], self._buckets[bucket + 1]
        places = range(begin, min(end, begin + _LONGEST_BUCKET, len(self._fingerprints)))
        return next((it for it in places if self._fingerprints[it] == fingerprint), None)


class NgramStores:
    """Stores by the hash of the tokenizer that they hold token ids of."""

    def __init__(self, names: Iterable[str] = (AUTO,)) -> None:
        """`names` are files, auto for those of the package or none; a later one takes precedence.

        Raises `WeightsError` for a file that is no store, `InvalidRequest` for one that is missing.
        """
        self._stores: dict[str, NgramFile] = {}
        for name in (name for name in names if name != NONE):
            for path in sorted(_SHIPPED.glob("*" + SUFFIX)) if name == AUTO else (_file(name),):
                store = open_store(path)
                self._stores[store.header.tokenizer_hash] = store

    def of(self, tokenizer_hash: str, *, vocab_size: int) -> NgramFile | None:
        """Return the store of a tokenizer; None without one, or where it has larger token ids."""
        store = self._stores.get(tokenizer_hash)
        return None if store is None or store.header.vocab_size > vocab_size else store


open_store = cache(NgramFile)
"""Store in a file, mapped once in a process."""


def store_named(name: str, tokenizer_hash: str, *, vocab_size: int) -> NgramFile | None:
    """Return the store that `name` stands for: auto is the package's, none is none, else a file.

    Raises `ModelMismatch` for a file of another tokenizer, and what `NgramStores` does.
    """
    if name == NONE:
        return None
    store = NgramStores((name,)).of(tokenizer_hash, vocab_size=vocab_size)
    if store is None and name != AUTO:
        raise ModelMismatch(f"the n-grams in {name} are of another tokenizer than the target's")
    return store


def _file(name: str) -> Path:
    path = path_of(name)
    if not os.path.isfile(path):  # which is false for what can't be a file's name
        raise InvalidRequest(
            f"ngrams is {name!r}, but must be auto, none or a file of `slipstream train ngrams`"
        )
    return path


def context_hashes(latest: Sequence[int]) -> list[int]:
    """Return the 64-bit hashes of the contexts of 1, 2, … tokens, the newest token first."""
    code, codes = 0, []
    for token in latest:
        code = (code ^ (token + 1)) * FACTOR & MASK
        code ^= code >> SHIFT
        codes.append(code)
    return codes


def checksum(parts: Sequence[bytes | memoryview]) -> int:
    """Return the CRC-32 of all parts, one behind the other."""
    return reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)


def _read(path: Path) -> tuple[StoreHeader, list[memoryview]]:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(mapped[:8], "little")
    if not 8 < start <= len(mapped):
        raise ValueError("its header is not within the file")
    about = parse_json(mapped[8:start], "its header")
    header = StoreHeader(**parse_json(about["__metadata__"]["ngrams"], "its header"))
    whole = memoryview(mapped)[start:]
    arrays = [_array(whole, name, about[name]) for name in ARRAYS]
    if checksum(arrays) != header.crc32:
        raise ValueError("its checksum is another one")
    return header, arrays


def _array(whole: memoryview, name: str, about: dict[str, Any]) -> memoryview:
    first, last = (int(number) for number in about["data_offsets"])
    if not 0 <= first <= last <= len(whole):
        raise ValueError(f"{name} lies outside the file")
    if about["dtype"] not in _TYPES[name]:
        raise ValueError(f"{name} has the type {about['dtype']}")
    return whole[first:last].cast(_FORMATS[about["dtype"]])


def _bits(arrays: Sequence[memoryview]) -> int:
    buckets, fingerprints, starts, tokens, probabilities = map(len, arrays)
    bits = (buckets - 1).bit_length() - 1
    if not 1 <= bits <= 32 or buckets != 2**bits + 1:
        raise ValueError(f"it has {buckets - 1} buckets, not a power of 2")
    if starts != fingerprints + 1 or tokens != probabilities:
        raise ValueError("its arrays are not of one length")
    return bits
