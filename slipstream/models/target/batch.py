"""Plain decoding of many conversations at once, for text in bulk; no trees, no sessions.

Weights and modelling code are transformers' own; the cache and the attention over it are ours.
Every row has its own length: keys sit at the slots of their positions, and a row sees its own
slots only. When a conversation ends is decided by the caller.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from slipstream.core.errors import ModelError

_ATTENTION = "slipstream_batch"
_BLOCK = 64
"""Slots are added in steps of this size."""
_PREFILL_TOKENS = {"cpu": 4096}
_MANY_PREFILL_TOKENS = 32768
"""Prompts are read in groups of about so many tokens: what they need in memory is bounded."""


def _attention_interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [B, heads, T, d], key and value [B, kv, T, d]."""
    cache: BatchCache = kwargs["slip_cache"]
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    layer: Any = module.layer_idx
    out = cache.attend(layer, query, (key, value), scale)
    return out.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_interface)


class BatchCache:
    """Keys and values [layers, 2, B, kv_heads, slots, d] of B rows, and their lengths [B]."""

    def __init__(self, shape: tuple[int, int, int], lengths: Tensor, like: Tensor) -> None:
        """`shape` is (layers, kv_heads, head_dim); `like` gives dtype and device."""
        layers, heads, dim = shape
        self.lengths = lengths
        self._kv = like.new_zeros(layers, 2, len(lengths), heads, 0, dim)
        self._mask = like.new_zeros(0)
        self._positions = like.new_zeros(0)
        self._rows = slice(0, 0)

    def begin(self, positions: Tensor, width: int, *, first: int = 0) -> None:
        """Make room for `width` slots; the next forward is of the rows from `first` on, at
        `positions` [rows, T]."""
        missing = -(-width // _BLOCK) * _BLOCK - self._kv.shape[4]
        if missing > 0:
            self._kv = nn.functional.pad(self._kv, (0, 0, 0, missing))
        self._rows = slice(first, first + len(positions))
        # All slots take part, empty ones masked: a slice would be copied by every product.
        self._positions, slots = positions, torch.arange(self._kv.shape[4], device=positions.device)
        hidden = slots > positions[..., None]
        mask = torch.zeros(hidden.shape, dtype=self._kv.dtype, device=positions.device)
        self._mask = mask.masked_fill_(hidden, float("-inf"))[:, None]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, [n] int64."""
        self._kv, self.lengths = self._kv[:, :, rows], self.lengths[rows]

    def attend(
        self, layer: int, query: Tensor, fresh: tuple[Tensor, Tensor], scale: float
    ) -> Tensor:
        """Store `fresh`, then attend: [B, heads, T, d]."""
        num_rows, num_heads, length, dim = query.shape
        rows = torch.arange(num_rows, device=query.device)[:, None]
        keys, values = self._kv[layer, :, self._rows]
        for held, new in zip((keys, values), fresh, strict=True):
            held[rows, :, self._positions] = new.transpose(1, 2)
        if query.is_cuda:
            return _attend_fused(query, (keys, values), self._mask, scale)
        if length > 1:
            result: Tensor = nn.functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=self._mask, scale=scale, enable_gqa=True
            )
            return result
        grouped = query.view(num_rows, keys.shape[1], -1, dim)
        scores = torch.matmul(grouped, keys.transpose(-1, -2)).float().mul_(scale)
        probs = torch.softmax(scores + self._mask, -1).to(values.dtype)
        return torch.matmul(probs, values).view(num_rows, num_heads, 1, dim)


def _attend_fused(query: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor, scale: float) -> Tensor:
    """Attention [B, heads, T, d] by a fused kernel, none of which repeats keys under a mask: the
    query heads of a group become rows beside each other."""
    num_rows, num_heads, length, dim = query.shape
    groups = num_heads // kv[0].shape[1]
    grouped = query.reshape(num_rows, -1, groups * length, dim)
    out = nn.functional.scaled_dot_product_attention(
        grouped, *kv, attn_mask=mask.repeat(1, 1, groups, 1), scale=scale
    )
    return out.reshape(num_rows, num_heads, length, dim)


class BatchModel:
    """A causal model that continues B conversations, a token of each per step."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Take the model over; ModelError where it has no language-model head."""
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelError(f"{type(model).__name__} has no language-model head")
        model.config._attn_implementation = _ATTENTION
        config = model.config.get_text_config()
        heads = int(config.num_attention_heads)
        dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        self._body: Any = model.base_model
        self._head = head
        self._shape = (int(config.num_hidden_layers), kv_heads, dim)

    @torch.inference_mode()
    def open(self, prompts: Sequence[Sequence[int]]) -> tuple[BatchCache, Tensor]:
        """Caches of the prompts and the logits [B, V] behind each one's last token."""
        device = self._head.weight.device
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths.max())
        cache = BatchCache(self._shape, lengths, self._head.weight)
        num_tokens = _PREFILL_TOKENS.get(device.type, _MANY_PREFILL_TOKENS)
        size = max(1, num_tokens // longest)
        last = [
            self._prefill(cache, prompts[first : first + size], first, longest)
            for first in range(0, len(prompts), size)
        ]
        return cache, self._head(torch.cat(last))

    def _prefill(
        self, cache: BatchCache, prompts: Sequence[Sequence[int]], first: int, width: int
    ) -> Tensor:
        """Fill the rows from `first` on; the hidden states [rows, d] of their last tokens."""
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts])
        ids = torch.zeros(len(prompts), int(ends.max()) + 1, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        ids, device = ids.to(cache.lengths.device), cache.lengths.device
        positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
        cache.begin(positions, width, first=first)
        hidden = self._forward(cache, ids, positions)
        return hidden[torch.arange(len(prompts), device=device), ends.to(device)]

    @torch.inference_mode()
    def step(self, cache: BatchCache, tokens: Tensor) -> Tensor:
        """Append a token to every row, [B]; the logits [B, V] behind it."""
        positions = cache.lengths[:, None]
        cache.begin(positions, int(positions.max()) + 1)
        hidden = self._forward(cache, tokens[:, None], positions)
        cache.lengths = cache.lengths + 1
        logits: Tensor = self._head(hidden[:, 0])
        return logits

    def _forward(self, cache: BatchCache, ids: Tensor, positions: Tensor) -> Tensor:
        out = self._body(input_ids=ids, position_ids=positions, use_cache=False, slip_cache=cache)
        hidden: Tensor = out.last_hidden_state
        return hidden
