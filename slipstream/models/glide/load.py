"""Loading of a GliDe draft, of the target's parts that it shares, and choice of what computes it:
native code on a CPU that has kernels for it, else torch."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.models.decision import DecisionModel
from slipstream.models.dtypes import AUTO, CPU
from slipstream.models.format.folder import reading
from slipstream.models.format.resolve import resolve, short_name
from slipstream.models.format.tokenizer import fitted
from slipstream.models.format.wheel import Progress
from slipstream.models.glide.glide_scorer import GlidePass, GlideScorer
from slipstream.models.glide.glide_weights import GlideWeights, check_target, read_glide
from slipstream.models.glide.target_parts import (
    LoadedParts,
    NativeParts,
    TargetParts,
    source_parts,
)
from slipstream.models.kv.pool import KvLayout
from slipstream.models.loaded import find_source, find_sources, find_tokenizer
from slipstream.models.native.glide import NativeGlide
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource

if TYPE_CHECKING:
    from slipstream.models.glide.glide_chains import GlideChains

_LOG = logging.getLogger("slipstream.models")


def target_parts(model: Any, *, tokenizer_hash: str | None = None) -> TargetParts:
    """Return the parts of a source of weights or of a transformers causal LM.

    Raises `ModelMismatch` when it has no single rotary module.
    """
    if isinstance(model, WeightSource):
        return source_parts(model, tokenizer_hash=tokenizer_hash)
    from slipstream.models.glide.torch_parts import model_parts

    return model_parts(model, tokenizer_hash=tokenizer_hash)


def load_parts(
    name: str, *, dtype: str = AUTO, device: str = CPU, progress: Progress | None = None
) -> LoadedParts:
    """The parts of a target by alias, path or hub id: those of `target_parts`.

    Raises what `load_target_parts` raises, and `ModelMismatch` for a target without rotary
    positions.
    """
    folder, gguf = find_sources(resolve(name, progress=progress))
    with suppress(NotNative):
        source = find_source(folder, gguf, dtype, device, has_layers=False)
        return _of_source(source, name, folder, gguf)
    from slipstream.models.glide.torch_parts import load_torch_parts

    return load_torch_parts(name, dtype=dtype, device=device, progress=progress)


def _of_source(source: WeightSource, name: str, folder: Path, gguf: Path | None) -> LoadedParts:
    arch = source.architecture
    with reading(gguf or folder):
        tokenizer = fitted(find_tokenizer(folder, gguf), folder, arch.vocab_size)
        parts = source_parts(source, tokenizer_hash=tokenizer.vocab_hash)
    return LoadedParts(parts, short_name(name), tokenizer.vocab_hash, arch.context_length)


def load_glide(
    path: Path,
    target: Any,
    *,
    dtype: "np.dtype[Any] | None" = None,
    tokenizer_hash: str | None = None,
) -> GlideScorer:
    """A scorer from a weights directory and its target (a model as `target_parts` takes it, or its
    parts).

    dtype: the target's by default. WeightsError when the files are broken, ModelMismatch when
    they belong to another target.
    """
    parts = target
    if not isinstance(target, TargetParts):
        parts = target_parts(target, tokenizer_hash=tokenizer_hash)
    with reading(path):
        weights = read_glide(path)
        check_target(weights.config, parts)
        return glide_scorer(weights, parts, dtype=dtype)


def glide_scorer(
    weights: GlideWeights,
    target: TargetParts,
    *,
    dtype: "np.dtype[Any] | None" = None,
    native: bool = True,
) -> GlideScorer:
    """Return a scorer of weights; `dtype` is that of keys and values, by default the target's.
    `native` False leaves all to torch."""
    config = weights.config
    own = target.dtype if dtype is None else dtype
    sizes = (config.num_layers, config.num_kv_heads, config.head_dim)
    layout = KvLayout(*sizes, own, target.device)
    computed = _native(weights, target, layout) if native else None
    computed = computed or _torch(weights, target, layout)
    return GlideScorer(config, weights.vocab, layout, computed)


def chains_of(
    scorer: GlideScorer, context_length: int, decision: DecisionModel | None
) -> "GlideChains | None":
    """Return the chains of a device, which computes them at once; None on a CPU.

    Positions are below `context_length`.
    """
    if scorer.layout.device == CPU:
        return None
    from slipstream.models.glide.glide_chains import GlideChains

    return GlideChains(scorer, context_length=context_length, decision=decision)


def _native(weights: GlideWeights, target: TargetParts, layout: KvLayout) -> GlidePass | None:
    try:
        return NativeGlide(weights, _native_parts(target), layout)
    except NotNative as reason:
        if layout.device == CPU:
            _LOG.info("torch computes the draft: %s", reason)
        return None


def _native_parts(target: TargetParts) -> NativeParts:
    if isinstance(target, NativeParts):
        return target
    from slipstream.models.glide.torch_parts import as_native

    return as_native(target)


def _torch(weights: GlideWeights, target: TargetParts, layout: KvLayout) -> GlidePass:
    from slipstream.models.glide.glide_torch import TorchGlide

    return TorchGlide(weights, target, layout)
