"""The parts of a target that a GliDe draft shares: embeddings, head, rotary factors, shapes.

A draft process reads them without the layers in between: of a large target, a few per cent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.models.dtypes import CPU, Array
from slipstream.models.format.folder import reading
from slipstream.models.format.resolve import short_name
from slipstream.models.format.rope import rotary_tables
from slipstream.models.format.tokenizer import find_tokenizer, fitted
from slipstream.models.native.source import WeightSource
from slipstream.models.native.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """The sizes of a target, as a draft has to have them; `dtype` is that of its keys and values.

    tokenizer_hash: None when the tokenizer is not at hand, which skips that check.
    """

    dtype: np.dtype[Any]
    device: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokenizer_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeParts(TargetParts):
    """The frozen parts of a target for a draft in native code.

    embedding: [V, d]; head_rows: token ids [n] to rows [n, d] of the head, float32; rotary: a
    number of positions to cos and sin of each [length, head_dim / 2], float32; is_tied: the head's
    rows are known to be the embedding's.
    """

    embedding: Weights
    head_rows: Callable[[Array], Array]
    rotary: Callable[[int], tuple[Array, Array]]
    is_tied: bool = False


def source_parts(source: WeightSource, *, tokenizer_hash: str | None = None) -> NativeParts:
    """Return the parts of a source of weights."""
    arch = source.architecture
    return NativeParts(
        dtype=source.dtype,
        device=CPU,
        vocab_size=arch.vocab_size,
        hidden_size=arch.hidden,
        num_layers=arch.num_layers,
        num_heads=arch.num_heads,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        tokenizer_hash=tokenizer_hash,
        embedding=source.embedding(),
        head_rows=source.head_rows,
        rotary=partial(rotary_tables, source.rotaries[0]),
        is_tied=source.is_tied,
    )


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """A target's parts, and what identifies it."""

    parts: TargetParts
    model_id: str
    tokenizer_hash: str
    context_length: int


def parts_of_source(
    source: WeightSource,
    make: Callable[..., TargetParts],
    name: str,
    folder: Path,
    gguf: Path | None,
) -> LoadedParts:
    """Return what `make` takes of a source of weights, and what identifies the target."""
    arch = source.architecture
    with reading(gguf or folder):
        tokenizer = fitted(find_tokenizer(folder, gguf), folder, arch.vocab_size)
        parts = make(source, tokenizer_hash=tokenizer.vocab_hash)
    return LoadedParts(parts, short_name(name), tokenizer.vocab_hash, arch.context_length)
