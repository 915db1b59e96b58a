"""The parts of a target that a draft in torch shares, as tensors; and those of a model in torch for
a draft in native code."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.core.errors import ModelMismatch
from slipstream.models.dtypes import CPU, Array, choose_dtype
from slipstream.models.format.architecture import EMBEDDING, HEAD, context_length
from slipstream.models.format.folder import reading
from slipstream.models.glide.target_parts import (
    LoadedParts,
    NativeParts,
    TargetParts,
    parts_of_source,
    source_parts,
)
from slipstream.models.loaded import parse_device
from slipstream.models.native.checkpoint import Checkpoint
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.native.weights import as_float32, plain
from slipstream.models.torch.arrays import as_array, as_tensor, numpy_dtype, start_torch
from slipstream.models.torch.loading import load_target_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchParts(TargetParts):
    """The frozen parts of a target for a draft in torch.

    embeddings, head: [V, d]; rotary: a number of positions to cos and sin of each
    [length, rotary_dim], float32, scaling included.
    """

    embeddings: Tensor
    head: Tensor
    rotary: Callable[[int], tuple[Tensor, Tensor]]


def model_parts(model: Any, *, tokenizer_hash: str | None = None) -> TorchParts:
    """Return the parts of a transformers causal LM.

    Raises `ModelMismatch` when it has no single rotary module.
    """
    config = model.config.get_text_config()
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    if rotary is None:
        raise ModelMismatch(
            f"{type(model).__name__} has no rotary_emb in its decoder, GliDe needs rotary positions"
        )
    heads = int(config.num_attention_heads)
    embeddings: Tensor = model.get_input_embeddings().weight.detach()
    return TorchParts(
        dtype=numpy_dtype(embeddings.dtype),
        device=str(embeddings.device),
        vocab_size=embeddings.shape[0],
        hidden_size=embeddings.shape[1],
        num_layers=int(config.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        tokenizer_hash=tokenizer_hash,
        embeddings=embeddings,
        head=model.get_output_embeddings().weight.detach(),
        rotary=partial(_called, rotary, embeddings.device),
    )


def as_native(parts: TargetParts) -> NativeParts:
    """Return the parts for a draft in native code. Raises `NotNative` where it can't take them."""
    assert isinstance(parts, TorchParts), "these are for torch"
    if parts.device != CPU or parts.embeddings.dtype not in (torch.bfloat16, torch.float32):
        raise NotNative(f"{parts.dtype.name} on {parts.device} has no native kernels")
    width = rotary_tables(parts, 1, dtype=torch.float32)[0].shape[1]
    if width != parts.head_dim or width % 2:
        raise NotNative(f"{width} of a head's {parts.head_dim} elements are rotated")

    def tables(length: int) -> tuple[Array, Array]:
        cos, sin = rotary_tables(parts, length, dtype=torch.float32)
        return as_array(cos[:, : width // 2]), as_array(sin[:, : width // 2])

    sizes = {field.name: getattr(parts, field.name) for field in fields(TargetParts)}
    return NativeParts(
        **sizes,
        embedding=plain(as_array(parts.embeddings)),
        head_rows=lambda ids: as_float32(as_array(parts.head[as_tensor(ids)])),
        rotary=tables,
        is_tied=parts.head.data_ptr() == parts.embeddings.data_ptr(),
    )


def tensor_parts(
    source: WeightSource, device: str, *, tokenizer_hash: str | None = None
) -> TorchParts:
    """Return the parts of a source of weights as tensors on a device."""
    own = source_parts(source, tokenizer_hash=tokenizer_hash)

    def tables(length: int) -> tuple[Tensor, Tensor]:
        cos, sin = (as_tensor(half).to(device).repeat(1, 2) for half in own.rotary(length))
        return cos, sin

    embeddings = as_tensor(source.dense(EMBEDDING)).to(device)
    head = embeddings if source.is_tied else as_tensor(source.dense(HEAD)).to(device)
    sizes = {field.name: getattr(own, field.name) for field in fields(TargetParts)}
    sizes["device"] = str(embeddings.device)
    return TorchParts(**sizes, embeddings=embeddings, head=head, rotary=tables)


def load_torch_parts(
    name: str, folder: Path, gguf: Path | None, dtype: str, device: str
) -> LoadedParts:
    """Return the parts of a target by alias, path or hub id, whose files are in `folder`, for a
    draft in torch: without the layers in between, but of a family that native code can't read."""
    start_torch()
    with suppress(NotNative):
        source = _dense_source(folder, gguf, choose_dtype(dtype, parse_device(device)))
        make = partial(tensor_parts, device=device)
        return parts_of_source(source, make, name, folder, gguf)
    loaded = load_target_parts(name, dtype=dtype, device=device)
    parts = model_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)
    length = context_length(loaded.model.config.get_text_config())
    return LoadedParts(parts, loaded.model_id, loaded.tokenizer_hash, length)


def _dense_source(folder: Path, gguf: Path | None, dtype: "np.dtype[Any]") -> WeightSource:
    """Return a source for torch, which needs no kernels. Raises `NotNative`, `WeightsError`."""
    with reading(gguf or folder):
        if gguf:
            return GgufSource(gguf, dtype, is_dense=True)
        return Checkpoint(folder, dtype, has_layers=False)


def rotary_tables(parts: TorchParts, length: int, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0..length-1, each [length, rotary_dim], scaling included."""
    cos, sin = parts.rotary(length)
    return cos.to(dtype), sin.to(dtype)


@torch.no_grad()
def _called(rotary: Any, device: torch.device, length: int) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=torch.float32, device=device)
    cos, sin = rotary(like, torch.arange(length, device=device)[None])
    return cos[0], sin[0]
