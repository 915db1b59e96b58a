"""A GliDe draft from its weights and its target, refused where the two do not belong together."""

from pathlib import Path
from typing import Any

import torch

from slipstream.core.errors import ModelMismatch
from slipstream.models.glide_config import GlideConfig
from slipstream.models.glide_scorer import GlideScorer
from slipstream.models.glide_target import TargetParts, target_parts
from slipstream.models.glide_weights import load_weights


def load_glide(
    path: Path, target: Any, *, dtype: torch.dtype | None = None, tokenizer_hash: str | None = None
) -> GlideScorer:
    """A scorer from a weights directory and its target (a transformers causal LM or its parts).

    dtype: the target's by default. WeightsError when the files are broken, ModelMismatch when
    they belong to another target.
    """
    parts = target
    if not isinstance(target, TargetParts):
        parts = target_parts(target, tokenizer_hash=tokenizer_hash)
    model, vocab = load_weights(path)
    check_target(model.config, parts)
    device = parts.embeddings.device
    wanted = parts.embeddings.dtype if dtype is None else dtype
    return GlideScorer(model.to(device), vocab.to(device), parts, dtype=wanted)


def check_target(config: GlideConfig, parts: TargetParts) -> None:
    """ModelMismatch unless the weights' config fits the target."""
    for name in ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
        ours, theirs = getattr(config, name), getattr(parts, name)
        if ours != theirs:
            raise ModelMismatch(f"the draft's {name} is {ours}, the target's {theirs}")
    if parts.tokenizer_hash not in (None, config.tokenizer_hash):
        raise ModelMismatch(
            f"the draft was trained with tokenizer {config.tokenizer_hash[:12]}, "
            f"the target's is {str(parts.tokenizer_hash)[:12]}"
        )
    if max(config.target_layers, default=0) >= parts.num_layers:
        raise ModelMismatch(
            f"the draft reads target layer {max(config.target_layers)}, "
            f"the target has {parts.num_layers} layers"
        )
