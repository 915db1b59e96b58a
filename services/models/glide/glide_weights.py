"""GliDe weights on disk: one safetensors file and its config, checked against each other.

Refuses anything pickled, and weights that belong to another target.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from slipstream.core.errors import ModelMismatch, WeightsError
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_config import (
    WEIGHTS_NAME,
    GlideConfig,
    read_config,
    write_config,
)
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.target_parts import TargetParts, target_parts

_VOCAB_KEY = "vocab"


def save_glide(model: GlideModel, vocab: Tensor, directory: Path) -> None:
    """Write config and weights; vocab [V_d] int64 holds the target id of each head column."""
    directory.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, model.config.dtype)
    tensors = {name: value.detach().to(dtype) for name, value in model.state_dict().items()}
    write_tensors({**tensors, _VOCAB_KEY: vocab.to(torch.int64)}, directory / WEIGHTS_NAME)
    write_config(model.config, directory)


def load_weights(directory: Path) -> tuple[GlideModel, Tensor]:
    """The model, in the dtype of its file, and its vocab [V_d]; WeightsError when broken."""
    config = read_config(directory)
    tensors = read_tensors(directory / WEIGHTS_NAME)
    vocab = tensors.pop(_VOCAB_KEY, None)
    _check_vocab(vocab, config, directory)
    with torch.device("meta"):
        model = GlideModel(config)
    _check_shapes(tensors, model.state_dict(), directory)
    model.load_state_dict(tensors, assign=True)
    assert vocab is not None
    return model.requires_grad_(False).eval(), vocab


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file, whole or not at all."""
    part = path.with_name(path.name + ".part")
    # Not `save_file`, whose files only their owner may read. Some readers ask for the format.
    whole = {name: value.contiguous() for name, value in tensors.items()}
    part.write_bytes(save(whole, metadata={"format": "pt"}))
    os.replace(part, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; WeightsError when it is missing or broken."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise WeightsError(f"{path} does not exist") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path} is no readable safetensors file: {error}") from None
    return tensors


def _check_vocab(vocab: Tensor | None, config: GlideConfig, directory: Path) -> None:
    if vocab is None or vocab.dtype != torch.int64 or vocab.shape != (config.head_size,):
        raise WeightsError(f"{directory} has no int64 vocab of {config.head_size} ids")
    rising = bool((vocab[1:] > vocab[:-1]).all())
    if not rising or int(vocab[0]) < 0 or int(vocab[-1]) >= config.vocab_size:
        raise WeightsError(
            f"the vocab in {directory} is not ascending within 0..{config.vocab_size - 1}"
        )


def _check_shapes(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], directory: Path
) -> None:
    odd = sorted(set(tensors) ^ set(wanted))
    odd += [n for n in set(tensors) & set(wanted) if tensors[n].shape != wanted[n].shape]
    if odd:
        raise WeightsError(f"the weights in {directory} do not fit their config: {', '.join(odd)}")


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
