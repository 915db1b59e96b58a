"""What a GliDe draft takes from its target: embeddings, head, rotary tables, shapes.

Knows nothing of drafting or training; the target is a source of weights, or any plain causal LM of
transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.core.errors import ModelMismatch
from slipstream.models.architecture import EMBEDDING, HEAD
from slipstream.models.native.source import WeightSource


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
