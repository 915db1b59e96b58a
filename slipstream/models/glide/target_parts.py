"""The parts of a target that a GliDe draft shares: embeddings, head, rotary factors, shapes.

A draft process reads them without the layers in between: of a large target, a few per cent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.models.dtypes import CPU
from slipstream.models.format.folder import reading
from slipstream.models.format.resolve import short_name
from slipstream.models.format.rope import rotary_tables
from slipstream.models.format.tokenizer import find_tokenizer, fitted
from slipstream.models.native.source import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """The sizes of a target, as a draft has to have them, and what a draft shares with it.

    dtype: that of its keys and values; embedding: `Weights` or a tensor [V, d]; head_rows: token
    ids [n] to rows [n, d] of the head, and rotary: a number of positions to cos and sin of each
    [length, rotary_dim / 2], scaling included: arrays in float32, or tensors; tokenizer_hash: None
    when the tokenizer is not at hand, which skips that check; is_tied: the head's rows are known to
    be the embedding's.
    """

    dtype: np.dtype[Any]
    device: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    embedding: Any
    head_rows: Callable[[Any], Any]
    rotary: Callable[[int], tuple[Any, Any]]
    tokenizer_hash: str | None = None
    is_tied: bool = False


def source_parts(source: WeightSource, *, tokenizer_hash: str | None = None) -> TargetParts:
    """Return the parts of a source of weights."""
    arch = source.architecture
    return TargetParts(
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
    context_length: int


def parts_of_source(
    source: WeightSource, name: str, folder: Path, gguf: Path | None
) -> LoadedParts:
    """Return the parts of a source of weights, and what identifies the target."""
    arch = source.architecture
    with reading(gguf or folder):
        tokenizer = fitted(find_tokenizer(folder, gguf), folder, arch.vocab_size)
        parts = source_parts(source, tokenizer_hash=tokenizer.vocab_hash)
    return LoadedParts(parts, short_name(name), arch.context_length)
