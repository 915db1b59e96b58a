"""The parts of a target that a GliDe draft shares: embeddings, head, rotary tables, shapes.

A draft process reads them without the layers in between: of a large target, a few per cent."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import ModelMismatch
from slipstream.models.dtypes import AUTO, choose_dtype
from slipstream.models.loading import (
    find_source,
    find_sources,
    find_tokenizer,
    load_target_parts,
    load_tokenizer,
    parse_device,
    require_causal,
    require_same_vocabulary,
)
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource
from slipstream.models.store.gguf import quiet_transformers
from slipstream.models.store.resolve import resolve, short_name
from slipstream.models.store.safetensors_file import Safetensors
from slipstream.models.store.wheel import Progress
from slipstream.models.target.architecture import EMBEDDING, HEAD, context_length
from slipstream.models.tokenizer import NumberedTokenizer


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The frozen parts of a target that a draft shares.

    embeddings, head: [V, d]; rotary: the target's own rotary embedding, called as
    (tensor for dtype and device, position_ids [1, T]) -> cos, sin [1, T, rotary_dim];
    tokenizer_hash: None when the tokenizer is not at hand, which skips that check.
    """

    embeddings: Tensor
    head: Tensor
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tokenizer_hash: str | None = None

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return int(self.embeddings.shape[0])

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self.embeddings.shape[1])


def target_parts(model: Any, *, tokenizer_hash: str | None = None) -> TargetParts:
    """Return the parts of a source of weights or of a transformers causal LM.

    Raises `ModelMismatch` when it has no single rotary module.
    """
    if isinstance(model, WeightSource):
        return source_parts(model, tokenizer_hash=tokenizer_hash)
    config = model.config.get_text_config()
    decoder = model.get_decoder()
    rotary = getattr(decoder, "rotary_emb", None)
    if rotary is None:
        raise ModelMismatch(
            f"{type(model).__name__} has no rotary_emb in its decoder, GliDe needs rotary positions"
        )
    heads = int(config.num_attention_heads)
    return TargetParts(
        embeddings=model.get_input_embeddings().weight.detach(),
        head=model.get_output_embeddings().weight.detach(),
        rotary=rotary,
        num_layers=int(config.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        tokenizer_hash=tokenizer_hash,
    )


def source_parts(source: WeightSource, *, tokenizer_hash: str | None) -> TargetParts:
    """Return the parts of a source of weights."""
    at = source.architecture
    return TargetParts(
        embeddings=source.dense(EMBEDDING),
        head=source.dense(EMBEDDING if source.is_tied else HEAD),
        rotary=source.rotary,
        num_layers=at.num_layers,
        num_heads=at.num_heads,
        num_kv_heads=at.num_kv_heads,
        head_dim=at.head_dim,
        tokenizer_hash=tokenizer_hash,
    )


def has_rotary(model: Any) -> bool:
    """Return whether a source of weights or a transformers causal LM has one rotary embedding."""
    return isinstance(model, WeightSource) or hasattr(model.get_decoder(), "rotary_emb")


def rotary_tables(parts: TargetParts, length: int, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
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


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """A target's parts, and what identifies it."""

    parts: TargetParts
    model_id: str
    tokenizer_hash: str
    context_length: int


def load_parts(
    name: str, *, dtype: str = AUTO, device: str = "cpu", progress: Progress | None = None
) -> LoadedParts:
    """The parts of a target by alias, path or hub id: those of `target_parts`, bit for bit.

    Raises what `load_target_parts` raises, and `ModelMismatch` for a target without rotary
    positions.
    """
    folder, gguf = find_sources(resolve(name, progress=progress))
    with suppress(NotNative):
        source = find_source(folder, gguf, dtype, device, has_layers=False)
        return _of_source(source, name, folder, gguf)
    torch_dtype = choose_dtype(dtype, parse_device(device))
    if gguf is None and (found := _read(folder, torch_dtype, device, name)):
        return found
    loaded = load_target_parts(name, dtype=dtype, device=device, progress=progress)
    parts = target_parts(loaded.model, tokenizer_hash=loaded.tokenizer_hash)
    length = context_length(loaded.model.config.get_text_config())
    return LoadedParts(parts, loaded.model_id, loaded.tokenizer_hash, length)


def _of_source(source: WeightSource, name: str, folder: Path, gguf: Path | None) -> LoadedParts:
    at, tokenizer = source.architecture, find_tokenizer(folder, gguf)
    require_same_vocabulary(folder, tokenizer.num_ids, at.vocab_size)
    parts = target_parts(source, tokenizer_hash=tokenizer.vocab_hash)
    return LoadedParts(parts, short_name(name), tokenizer.vocab_hash, at.context_length)


def _read(folder: Path, dtype: torch.dtype, device: str, name: str) -> LoadedParts | None:
    """Return the parts by their names in the files; None where they are not plain tensors there."""
    config = require_causal(folder)
    if getattr(config, "quantization_config", None) is not None:
        return None
    with quiet_transformers(reads_gguf=False):
        skeleton = _skeleton(config, dtype)
        tokenizer = NumberedTokenizer.of(load_tokenizer(folder, None))
    tables = _tables(folder, skeleton, config, device)
    rotary: Any = getattr(skeleton.get_decoder(), "rotary_emb", None)
    if tables is None or not hasattr(rotary, "config"):
        return None
    text = config.get_text_config()
    require_same_vocabulary(folder, tokenizer.num_ids, text.vocab_size)
    skeleton.get_decoder().rotary_emb = type(rotary)(config=text).to(device)
    for module, table in zip(_ends(skeleton), tables, strict=True):
        module.weight = table
    # Every number but the table sizes comes from the configuration: that of all the layers.
    skeleton.config = config
    parts = target_parts(skeleton, tokenizer_hash=tokenizer.vocab_hash)
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
    tables = [files.tensor(name) for name in there if files.is_plain(name)]
    if len(tables) < len(there):
        return None
    if any(table.shape != module.weight.shape for table in tables for module in _ends(skeleton)):
        return None
    if is_tied and torch.equal(tables[0], tables[-1]):
        del tables[1:]
    like = skeleton.get_input_embeddings().weight
    weights = [nn.Parameter(table.to(device, like.dtype), requires_grad=False) for table in tables]
    return weights[0], weights[-1]
