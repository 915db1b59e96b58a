"""A tiny random target and a tiny random draft for it, in float32, and what they compute."""

from typing import Any

import torch
from torch import Tensor

from slipstream.models.dtypes import FLOAT32
from slipstream.models.glide.glide import GlideModel, Rope
from slipstream.models.glide.glide_config import GlideConfig
from slipstream.models.glide.glide_init import GlideShape, config_for_target
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.load import draft_scorer, target_parts
from slipstream.models.glide.torch_parts import rope_of
from slipstream.models.scorer import NUM_SINKS, KvView
from support.models import tiny

VOCAB = 61
TREE = [([4, 5], [-1, -1]), ([6, 7, 8], [0, 0, 1]), ([9], [3])]
"""Tokens and parents, a generation at a time."""
SIZES: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"max_position_embeddings": 128, "initializer_range": 0.02},
}


def paths() -> list[list[int]]:
    """Return the tokens of each node of `TREE` from the root's end on, its own last."""
    found: list[list[int]] = []
    for tokens, parents in TREE:
        found += [
            [*(found[parent] if parent >= 0 else []), token]
            for token, parent in zip(tokens, parents, strict=True)
        ]
    return found


def llama(**changes: Any) -> Any:
    return tiny.hf_model("llama", **{**SIZES, **changes})


def qwen2(**changes: Any) -> Any:
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    return tiny.hf_model("qwen2", **{**sizes, **changes})


def qwen3(**changes: Any) -> Any:
    return tiny.hf_model("qwen3", **{**SIZES, **changes})


def shape(num_layers: int = 1, target_layers: tuple[int, ...] = (1, 3)) -> GlideShape:
    return GlideShape(target_layers, head_size=40, max_lag=8, num_layers=num_layers)


def config(target: Any, num_layers: int = 1) -> GlideConfig:
    return config_for_target(target, shape(num_layers), name="tiny", tokenizer_hash="t" * 64)


def draft(config: GlideConfig, seed: int = 1) -> GlideModel:
    """Weights large enough that every sublayer matters."""
    torch.manual_seed(seed)
    model = GlideModel(config)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn_like(value) * 0.3 + (value.ndim == 1))
    return model.eval()


def vocab(config: GlideConfig) -> Tensor:
    return torch.arange(0, config.head_size) + 5


def scorer(target: Any, model: GlideModel, *, native: bool = True) -> GlideScorer:
    weights, parts = tiny.weights_of(model, vocab(model.config)), target_parts(target)
    return draft_scorer(weights, parts, dtype=FLOAT32, native=native)


@torch.no_grad()
def target_kv(target: Any, tokens: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, [1, kv_heads, T, head_dim]."""
    ids = torch.tensor([tokens], device=target.device)
    cache = target.model(input_ids=ids, use_cache=True).past_key_values
    return [(layer.keys, layer.values) for layer in cache.layers]


def view(
    target: Any, tokens: list[int], count: int, capacity: int = 64, skipped: int = 0
) -> KvView:
    """The target's cache after `tokens`, without those that are skipped; slots from `count` on hold
    nonsense."""
    layers, capacity = {}, max(capacity, len(tokens))
    for index, (keys, values) in enumerate(target_kv(target, tokens)):
        size = (keys.shape[1], capacity, keys.shape[3])
        padded = [part.new_full(size, 1e4) for part in (keys, values)]
        padded[0][:, :count], padded[1][:, :count] = keys[0, :, :count], values[0, :, :count]
        layers[index] = torch.cat([_read(part, skipped) for part in padded])
    return KvView(count, layers, skipped)


def _read(values: Tensor, skipped: int) -> Tensor:
    """Return [..., T, width] without the positions that are skipped."""
    return torch.cat([values[..., :NUM_SINKS, :], values[..., NUM_SINKS + skipped :, :]], -2)


@torch.no_grad()
def reference(
    target: Any, model: GlideModel, tokens: list[int], count: int, skipped: int = 0, own: int = 0
) -> Tensor:
    """Scores [T - own, V_d] of the module that is trained, with `skipped` of the target's positions
    behind the first `NUM_SINKS` left out, and `own` tokens, at least as many: row j reads the
    target positions before both `count` and its own (row 0 reads position 0)."""
    everything, own = torch.arange(len(tokens))[:, None], max(skipped, own)
    at, theirs = _read(everything, own)[:, 0], _read(everything, skipped)[:, 0]
    kvs = [tuple(_read(at, skipped) for at in pair) for pair in target_kv(target, tokens)]
    tables = rope_of(target_parts(target).rotary(len(tokens)), torch.empty(0))
    rope = Rope(*(table[at] for table in tables))
    allowed = (theirs[None] < at[:, None]) & (theirs[None] < count)
    allowed[0, 0] = True
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[None, None]
    x = target.get_input_embeddings()(torch.tensor([tokens])[:, at])
    states = model(x, [kvs[layer] for layer in model.config.target_layers], rope, mask)
    return states[0] @ target.get_output_embeddings().weight[vocab(model.config)].T
