"""The parts of a target that a draft in torch shares, as tensors; and those of a model in torch for
a draft in native code."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.core.errors import ModelMismatch
from slipstream.models.dtypes import CPU, Array, choose_dtype
from slipstream.models.format.architecture import EMBEDDING, context_length
from slipstream.models.format.folder import reading
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.target_parts import LoadedParts, TargetParts, parts_of_source
from slipstream.models.loaded import parse_device
from slipstream.models.native.checkpoint import Checkpoint
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.native.weights import Weights, as_float32, plain
from slipstream.models.torch.arrays import as_array, as_tensor, numpy_dtype, start_torch
from slipstream.models.torch.loading import load_target_parts


def model_parts(model: Any, *, tokenizer_hash: str | None = None) -> TargetParts:
    """Return the parts of a transformers causal LM, as tensors.

    Raises `ModelMismatch` when it has no single rotary module.
    """
    config = model.config.get_text_config()
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    if rotary is None:
        raise ModelMismatch(
            f"{type(model).__name__} has no rotary_emb in its decoder, GliDe needs rotary positions"
        )
    heads = int(config.num_attention_heads)
    embedding: Tensor = model.get_input_embeddings().weight.detach()
    head: Tensor = model.get_output_embeddings().weight.detach()
    return TargetParts(
        dtype=numpy_dtype(embedding.dtype),
        device=str(embedding.device),
        vocab_size=embedding.shape[0],
        hidden_size=embedding.shape[1],
        num_layers=int(config.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        tokenizer_hash=tokenizer_hash,
        embedding=embedding,
        head_rows=lambda ids: head[as_tensor(ids).to(head.device)],
        rotary=partial(_called, rotary, embedding.device),
        is_tied=head.data_ptr() == embedding.data_ptr(),
    )


def as_native(parts: TargetParts) -> TargetParts:
    """Return the parts for a draft in native code. Raises `NotNative` where it can't take them."""
    own = parts.embedding
    if parts.device != CPU or own.dtype not in (torch.bfloat16, torch.float32):
        raise NotNative(f"{parts.dtype.name} on {parts.device} has no native kernels")
    width = 2 * parts.rotary(1)[0].shape[1]
    if width != parts.head_dim:
        raise NotNative(f"{width} of a head's {parts.head_dim} elements are rotated")

    def tables(length: int) -> tuple[Array, Array]:
        cos, sin = map(as_array, parts.rotary(length))
        return cos, sin

    return replace(
        parts,
        embedding=plain(as_array(own)),
        head_rows=lambda ids: as_float32(as_array(parts.head_rows(ids))),
        rotary=tables,
    )


def table_of(parts: TargetParts) -> Tensor:
    """Return the embedding [V, d] as a tensor."""
    own = parts.embedding
    return as_tensor(own.matrix if isinstance(own, Weights) else own)


def load_torch_parts(
    name: str, folder: Path, gguf: Path | None, dtype: str, device: str
) -> LoadedParts:
    """Return the parts of a target by alias, path or hub id, whose files are in `folder`, for a
    draft in torch: without the layers in between, but of a family that native code can't read."""
    start_torch()
    chosen = choose_dtype(dtype, parse_device(device))
    with suppress(NotNative):
        with reading(gguf or folder):  # for torch, which needs no kernels
            source: WeightSource = (
                GgufSource(gguf, chosen, is_dense=True)
                if gguf
                else Checkpoint(folder, chosen, has_layers=False)
            )
        found, place = parts_of_source(source, name, folder, gguf), torch.empty(0, device=device)
        table = plain(source.dense(EMBEDDING))
        parts = replace(found.parts, embedding=table, device=str(place.device))
        return replace(found, parts=parts)
    loaded = load_target_parts(name, dtype=dtype, device=device)
    parts = model_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)
    length = context_length(loaded.model.config.get_text_config())
    return LoadedParts(parts, loaded.model_id, length)


def rope_of(halves: Iterable[Array | Tensor], like: Tensor) -> Rope:
    """Return the rotary factors [length, rotary_dim] whose halves these are, of the dtype of `like`
    and where that is."""
    return Rope(*(as_tensor(half).to(like).repeat(1, 2) for half in halves))


@torch.no_grad()
def _called(rotary: Any, device: torch.device, length: int) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=torch.float32, device=device)
    cos, sin = (own[0] for own in rotary(like, torch.arange(length, device=device)[None]))
    return cos[:, : cos.shape[1] // 2], sin[:, : sin.shape[1] // 2]
