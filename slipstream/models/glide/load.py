"""Drafts and parts of targets from files: native code computes where it can, else torch."""

import logging
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.errors import InvalidRequest
from slipstream.files import path_of
from slipstream.models.dtypes import AUTO, CPU
from slipstream.models.eagle.eagle_scorer import EagleScorer
from slipstream.models.eagle.eagle_weights import EagleWeights, check_eagle_target
from slipstream.models.format.folder import reading
from slipstream.models.format.resolve import resolve
from slipstream.models.glide.glide_config import EagleConfig
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.glide_weights import GlideWeights, check_target, read_glide
from slipstream.models.glide.target_parts import (
    LoadedParts,
    TargetParts,
    parts_of_source,
    source_parts,
)
from slipstream.models.kv.pool import KvLayout
from slipstream.models.loaded import find_source, find_sources
from slipstream.models.machine import require_torch
from slipstream.models.native.chains import NativeChains
from slipstream.models.native.glide import NativeEagle, NativeGlide
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.native.weights import Weights
from slipstream.models.scorer import Chains

if TYPE_CHECKING:
    from slipstream.core.policy.profile import Profile
    from slipstream.models.decision import DecisionModel

_LOG = logging.getLogger("slipstream.models")
_SHIPPED = Path(__file__).parent.parent / "weights"


def glide_folder(name: str, model_id: str) -> Path:
    """Return the directory of GliDe weights of a draft. Raises `InvalidRequest`."""
    if name == "glide":
        folder = shipped_folder(model_id)
        if not folder.is_dir():
            raise InvalidRequest(
                f"no GliDe weights are shipped for {model_id}; train some with"
                " `slipstream train glide` and name their directory, or draft with ngram"
            )
        return folder
    if not name or not os.path.isdir(path_of(name)):
        raise InvalidRequest(
            f"the draft is {name!r}, but must be glide, ngram, none, vanilla:MODEL, eagle3:HEAD or"
            " a directory of GliDe weights"
        )
    return path_of(name)


def shipped_folder(model_id: str) -> Path:
    """Return where GliDe weights for a model lie, if some were shipped."""
    return _SHIPPED / f"{model_id}-glide"


def load_glide(path: Path, target: TargetParts, *, is_scaled: bool = False) -> GlideScorer:
    """A scorer from a weights directory and the parts of its target; see `draft_scorer`.

    WeightsError when the files are broken, ModelMismatch when they belong to another target.
    """
    with reading(path):
        weights = read_glide(path)
        check_target(weights.config, target)
        return draft_scorer(weights, target, is_scaled=is_scaled)


def draft_scorer(
    weights: GlideWeights | EagleWeights,
    target: TargetParts,
    *,
    dtype: "np.dtype[Any] | None" = None,
    native: bool = True,
    is_scaled: bool = False,
) -> GlideScorer:
    """Return a scorer with these weights of a GliDe draft or an EAGLE-3 head. `dtype` is that of
    keys and values, by default the target's; `native` False leaves all to torch, which alone has
    chains on a device and, where it `is_scaled`, computes products in 8-bit floats.

    Raises `ModelMismatch` for a head of another target.
    """
    config = weights.config
    if isinstance(config, EagleConfig):
        check_eagle_target(config, target)
    sizes = config.num_layers, config.num_kv_heads, config.head_dim
    layout = KvLayout(*sizes, dtype or target.dtype, target.device)
    backend: Any = _native(weights, target, layout) if native else None
    if backend is None:
        require_torch("the draft")
        from slipstream.models.eagle.eagle_torch import torch_draft

        backend = torch_draft(weights, target, layout, is_scaled=is_scaled)
    if isinstance(config, EagleConfig):
        return EagleScorer(config, weights.vocab, layout, backend, target.num_layers)
    return GlideScorer(config, weights.vocab, layout, backend)


def glide_chains(
    scorer: GlideScorer,
    context_length: int,
    decision: "DecisionModel | None",
    profile: "Profile | None" = None,
) -> Chains | None:
    """Return the chains of a draft on a device or in native code; None for torch on a CPU.

    Positions are below `context_length`. Requests go by the `profile`.
    """
    if isinstance(scorer.backend, NativeGlide):
        return NativeChains(scorer, decision)
    if scorer.layout.device == CPU:
        return None
    from slipstream.models.glide.glide_chains import GlideChains

    return GlideChains(scorer, context_length, decision, profile)


def target_parts(model: Any, *, tokenizer_hash: str | None = None) -> TargetParts:
    """Return the parts of a source of weights or of a transformers causal LM.

    Raises `ModelMismatch` when it has no single rotary module.
    """
    if isinstance(model, WeightSource):
        return source_parts(model, tokenizer_hash=tokenizer_hash)
    parts: TargetParts = _torch_parts().model_parts(model, tokenizer_hash=tokenizer_hash)
    return parts


def load_parts(name: str, *, dtype: str = AUTO, device: str = CPU) -> LoadedParts:
    """The parts of a target by alias, path or hub id: those of `target_parts`.

    Raises what `load_target_parts` raises, and `ModelMismatch` for a target without rotary
    positions.
    """
    folder, gguf = find_sources(resolve(name))
    try:
        source = find_source(folder, gguf, dtype, device, has_layers=False)
        return parts_of_source(source, name, folder, gguf)
    except NotNative as reason:
        require_torch(f"{name} ({reason})")
    parts: LoadedParts = _torch_parts().load_torch_parts(name, folder, gguf, dtype, device)
    return parts


def _torch_parts() -> ModuleType:
    """Return the module for parts in torch, which native drafts do without."""
    from slipstream.models.glide import torch_parts

    return torch_parts


def _native(
    weights: GlideWeights | EagleWeights, target: TargetParts, layout: KvLayout
) -> Any | None:
    try:
        is_native = isinstance(target.embedding, Weights)
        parts = target if is_native else _torch_parts().as_native(target)
        if isinstance(weights, EagleWeights):
            return NativeEagle(weights, parts, layout)
        return NativeGlide(weights, parts, layout)
    except NotNative as reason:
        if layout.device == CPU:
            _LOG.info("torch computes the draft: %s", reason)
        return None
