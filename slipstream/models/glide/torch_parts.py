"""The parts of a target that a draft in torch shares, as tensors; and those of a model in torch for
a draft in native code."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import ModelMismatch
from slipstream.models.dtypes import AUTO, CPU, Array, choose_dtype
from slipstream.models.format.architecture import context_length
from slipstream.models.format.gguf import quiet_transformers
from slipstream.models.format.resolve import resolve, short_name
from slipstream.models.format.safetensors_file import Safetensors
from slipstream.models.format.tokenizer import NumberedTokenizer, fitted
from slipstream.models.format.wheel import Progress
from slipstream.models.glide.target_parts import LoadedParts, NativeParts, TargetParts
from slipstream.models.loaded import find_sources, load_tokenizer, parse_device
from slipstream.models.native.library import NotNative
from slipstream.models.native.weights import as_float32, plain
from slipstream.models.torch.arrays import (
    as_array,
    as_tensor,
    numpy_dtype,
    start_torch,
    torch_dtype,
)
from slipstream.models.torch.loading import load_target_parts, require_causal


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchParts(TargetParts):
    """The frozen parts of a target for a draft in torch.

    embeddings, head: [V, d]; rotary: the target's own rotary embedding, called as
    (tensor for dtype and device, position_ids [1, T]) -> cos, sin [1, T, rotary_dim].
    """

    embeddings: Tensor
    head: Tensor
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


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
        rotary=rotary,
    )


def as_native(parts: TargetParts) -> NativeParts:
    """Return the parts for a draft in native code. Raises `NotNative` where it can't take them."""
    assert isinstance(parts, TorchParts), "parts are native code's or torch's"
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
    )


def rotary_tables(parts: TorchParts, length: int, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0..length-1, each [length, rotary_dim], scaling included."""
    positions = torch.arange(length, device=parts.embeddings.device)[None]
    like = torch.empty(0, dtype=torch.float32, device=parts.embeddings.device)
    with torch.no_grad():
        cos, sin = parts.rotary(like, positions)
    return cos[0].to(dtype), sin[0].to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves convention; x [..., T, head_dim], cos and sin [T, rotary_dim].

    Dimensions beyond rotary_dim pass unchanged (partial rotary).
    """
    width = cos.shape[-1]
    part, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    low, high = part.chunk(2, dim=-1)
    turned = part * cos + torch.cat((-high, low), dim=-1) * sin
    return turned if rest is None else torch.cat((turned, rest), dim=-1)


def load_torch_parts(
    name: str, *, dtype: str = AUTO, device: str = CPU, progress: Progress | None = None
) -> LoadedParts:
    """Return the parts of a target that native code does not compute; see `load_parts`."""
    start_torch()
    chosen = choose_dtype(dtype, parse_device(device))
    folder, gguf = find_sources(resolve(name, progress=progress))
    if gguf is None and (found := _read(folder, torch_dtype(chosen), device, name)):
        return found
    loaded = load_target_parts(name, dtype=dtype, device=device, progress=progress)
    parts = model_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)
    length = context_length(loaded.model.config.get_text_config())
    return LoadedParts(parts, loaded.model_id, loaded.tokenizer_hash, length)


def _read(folder: Path, dtype: torch.dtype, device: str, name: str) -> LoadedParts | None:
    """Return the parts by their names in the files; None where they are not plain tensors there."""
    config = require_causal(folder)
    if getattr(config, "quantization_config", None) is not None:
        return None
    with quiet_transformers():
        skeleton = _skeleton(config, dtype)
        tokenizer = NumberedTokenizer.of(load_tokenizer(folder, None))
    tables = _tables(folder, skeleton, config, device)
    rotary: Any = getattr(skeleton.get_decoder(), "rotary_emb", None)
    if tables is None or not hasattr(rotary, "config"):
        return None
    text = config.get_text_config()
    tokenizer = fitted(tokenizer, folder, text.vocab_size)
    skeleton.get_decoder().rotary_emb = type(rotary)(config=text).to(device)
    for module, table in zip(_ends(skeleton), tables, strict=True):
        module.weight = table
    # Every number but the table sizes comes from the configuration: that of all the layers.
    skeleton.config = config
    parts = model_parts(skeleton, tokenizer_hash=tokenizer.vocab_hash)
    return LoadedParts(parts, short_name(name), tokenizer.vocab_hash, context_length(text))


def _ends(model: Any) -> tuple[nn.Module, nn.Module]:
    return model.get_input_embeddings(), model.get_output_embeddings()


def _skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The model with one layer and no memory behind its weights."""
    short = copy.deepcopy(config)
    text = short.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(short, dtype=dtype)


def _tables(
    folder: Path, skeleton: Any, config: Any, device: str
) -> tuple[nn.Parameter, nn.Parameter] | None:
    """Embeddings and head; the same tensor where the model ties them."""
    files = Safetensors(folder)
    modules = {id(module): name for name, module in skeleton.named_modules()}
    names = [f"{modules[id(module)]}.weight" for module in _ends(skeleton)]
    is_tied = bool(config.get_text_config().tie_word_embeddings)
    there = [name for name in names if name in files]
    if len(there) < 2 and not (there and is_tied):
        return None
    tables = [as_tensor(files.tensor(name)) for name in there if files.is_plain(name)]
    if len(tables) < len(there):
        return None
    if any(table.shape != module.weight.shape for table in tables for module in _ends(skeleton)):
        return None
    if is_tied and torch.equal(tables[0], tables[-1]):
        del tables[1:]
    like = skeleton.get_input_embeddings().weight
    weights = [nn.Parameter(table.to(device, like.dtype), requires_grad=False) for table in tables]
    return weights[0], weights[-1]
