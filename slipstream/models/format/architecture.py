"""Sizes and parts of decoders: by config.json for families with a native forward, else by a model.

What config.json has otherwise than these families is refused with a reason: transformers then
loads the model, and torch computes it. What is of another type, or is not read, is refused by name.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models.format.families import FORMS, Form, fields_of, text_config
from slipstream.models.format.gguf_file import MAX_LAYERS
from slipstream.models.format.rope import Rotary, nested_ropes, positions_of, rope_of, rotary
from slipstream.models.kv.pool import KvLayout
from slipstream.models.native.library import NotNative

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
BLOCK_NORMS = {
    "before": (("input_layernorm", None), ("post_attention_layernorm", None)),
    "after": ((None, "post_attention_layernorm"), (None, "post_feedforward_layernorm")),
    "both": (
        ("input_layernorm", "post_attention_layernorm"),
        ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
}
"""Names of the norms before and after an attention, and before and after an MLP."""
_ATTENTION = {f"self_attn.{part}_proj" for part in "qkvo"}
_MLP = {f"mlp.{part}_proj" for part in ("gate", "up", "down")}
_GELU, _SILU = {"gelu_pytorch_tanh", "gelu_new"}, {"silu", "swish"}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NESTED = {"gemma3_text", "olmo3"}
"""Families with a rotary embedding for each kind of layer."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and parts of a decoder. `ropes` are as `rope.rotary` takes them.

    layer_ropes: the place in `ropes` of each layer's, -1 for none; windows: how many positions each
    layer sees, 0 for all; biases: names of the linears in a layer that have one; logits are divided
    by `logits_scaling`, what blocks add is multiplied by `residual_scale`.
    """

    vocab_size: int
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: int
    norm_eps: float
    context_length: int
    ropes: tuple[Mapping[str, Any], ...]
    layer_ropes: tuple[int, ...]
    windows: tuple[int, ...]
    is_tied: bool
    biases: frozenset[str]
    form: Form
    is_gelu: bool
    embedding_scale: float
    residual_scale: float
    attention_scale: float
    logits_scaling: float
    eos_ids: frozenset[int]

    def rotaries(self) -> tuple[Rotary, ...]:
        """Return the frequencies of positions."""
        return tuple(rotary(rope, self.head_dim) for rope in self.ropes)

    def digest(self) -> str:
        """Return a SHA-256 that architectures share where all their fields are equal."""
        fields = json.dumps(asdict(self), sort_keys=True, default=sorted)
        return hashlib.sha256(fields.encode()).hexdigest()

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor but the head."""
        yield EMBEDDING, (self.vocab_size, self.hidden)
        yield NORM, (self.hidden,)
        for layer in range(self.num_layers):
            yield from self.layer(layer)

    def layer(self, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor of a layer."""
        for name, shape in self._parts():
            yield f"model.layers.{index}.{name}", shape

    def linears(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield name and shape of every linear in a layer."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if self.form.is_fused:
            yield "self_attn.qkv_proj", (queries + 2 * keys, self.hidden)
            yield "mlp.gate_up_proj", (2 * self.mlp, self.hidden)
        else:
            yield "self_attn.q_proj", (queries, self.hidden)
            yield "self_attn.k_proj", (keys, self.hidden)
            yield "self_attn.v_proj", (keys, self.hidden)
            yield "mlp.gate_proj", (self.mlp, self.hidden)
            yield "mlp.up_proj", (self.mlp, self.hidden)
        yield "self_attn.o_proj", (self.hidden, queries)
        yield "mlp.down_proj", (self.hidden, self.mlp)

    def _parts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, shape in self.linears():
            yield f"{name}.weight", shape
            if name in self.biases:
                yield f"{name}.bias", shape[:1]
        for block in BLOCK_NORMS[self.form.norms]:
            for norm in filter(None, block):
                yield f"{norm}.weight", (self.hidden,)
        if self.form.head_norms != "none":
            heads = (self.num_heads, self.num_kv_heads)
            for name, count in zip("qk", heads, strict=True):
                width = self.head_dim * (count if self.form.head_norms == "all" else 1)
                yield f"self_attn.{name}_norm.weight", (width,)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of any model that is served; `num_embeddings` counts the tokens that it knows,
    `weights_type` is the weights' element type as results show it."""

    name: str
    hidden_size: int
    mlp_size: int
    vocab_size: int
    context_length: int
    layout: KvLayout
    num_embeddings: int
    weights_type: str


def context_length(config: Any) -> int:
    """Return the positions that a model can be served for, by its text configuration.

    Raises `ModelError` for attention that the cache can't serve.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None)
    limit = positions_of(rope, int(config.max_position_embeddings))
    is_on = getattr(config, "use_sliding_window", True)
    if window := (is_on and getattr(config, "sliding_window", None)):
        return min(limit, int(window))
    if any(kind != _FULL for kind in kinds or ()):
        raise ModelError(f"attention of the kind {sorted(set(kinds or ()))} can't be cached")
    return limit


def parse(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a config.json.

    Raises `NotNative` for one without a native forward, `WeightsError` for a value of another type
    or a rotary parameter that is not read, `ModelError` for attention that can't be cached.
    """
    config = text_config(config)
    family = str(config.get("model_type"))
    if family not in FORMS:
        raise NotNative(f"models of type {family} have no native forward")
    own, form = fields_of(config), FORMS[family]
    hidden, heads = own["hidden_size"], own["num_attention_heads"]
    kv_heads = own["num_key_value_heads"] or heads
    if hidden % heads or heads % kv_heads:
        raise NotNative(f"{hidden} elements, {heads} heads and {kv_heads} key heads do not divide")
    head_dim = own["head_dim"] or hidden // heads
    ropes, limit = _ropes(family, own, head_dim)
    windows = _windows(own, form)
    return Architecture(
        vocab_size=own["vocab_size"],
        hidden=hidden,
        num_layers=len(windows),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=own["intermediate_size"],
        norm_eps=float(own["rms_norm_eps"]),
        context_length=limit,
        ropes=ropes,
        layer_ropes=_layer_ropes(own, windows, len(ropes)),
        windows=windows,
        is_tied=own["tie_word_embeddings"],
        biases=_biases(own, form),
        form=form,
        is_gelu=_is_gelu(family, own),
        **_scales(own, head_dim, form),
        eos_ids=eos_ids(own["eos_token_id"]),
    )


def eos_ids(value: Any) -> frozenset[int]:
    """Return the ids of a field `eos_token_id`: a number, several or none."""
    ids = value if isinstance(value, list | tuple) else [value]
    return frozenset(token for token in ids if isinstance(token, int))


def _scales(own: Mapping[str, Any], head_dim: int, form: Form) -> dict[str, float]:
    root = own["hidden_size"] ** (form.has_root_scale / 2)
    usual = own.get("query_pre_attn_scalar", head_dim) ** -0.5
    return {
        "embedding_scale": float(own.get("embedding_multiplier", root)),
        "residual_scale": float(own.get("residual_multiplier", 1.0)),
        "attention_scale": float(own.get("attention_multiplier", usual)),
        "logits_scaling": float(own.get("logits_scaling", 1.0)),
    }


def _is_gelu(family: str, own: Mapping[str, Any]) -> bool:
    name = own.get("hidden_activation", own.get("hidden_act"))
    if name in _GELU or (family == "gemma" and name == "gelu"):  # which means the other there
        return True
    if name not in _SILU:
        raise NotNative(f"its MLP is gated by {name}, not by SiLU or GELU's form with tanh")
    return False


def _biases(own: Mapping[str, Any], form: Form) -> frozenset[str]:
    attention = _ATTENTION if own.get("attention_bias") else form.biases
    return frozenset({*attention, *(_MLP if own.get("mlp_bias") else ())})


def _windows(own: Mapping[str, Any], form: Form) -> tuple[int, ...]:
    count = own["num_hidden_layers"]
    if not 1 <= count <= MAX_LAYERS:
        raise WeightsError(f"config.json has {count} layers, but 1 to {MAX_LAYERS} can be loaded")
    window: int = (own.get("use_sliding_window", True) and own.get("sliding_window")) or 0
    kinds = own.get("layer_types")
    if kinds is None:
        slides = [window and _slides(own, form, layer) for layer in range(count)]
        kinds = [_SLIDING if is_sliding else _FULL for is_sliding in slides]
    known = [_FULL, _SLIDING] if window else [_FULL]
    if len(kinds) != count or any(kind not in known for kind in kinds):
        raise ModelError(
            f"attention of the kind {sorted(set(map(str, kinds)))} in {count} layers, with a window"
            f" of {window} positions, can't be cached"
        )
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def _slides(own: Mapping[str, Any], form: Form, layer: int) -> bool:
    """Return whether a layer has a window where config.json names no kinds of layers."""
    if every := own.get("sliding_window_pattern", form.window_every):
        return bool((layer + 1) % every)
    if "no_rope_layers" in own:
        return not _has_rope(own, layer)
    first: int = own.get("max_window_layers", 0)
    return layer >= first


def _ropes(
    family: str, own: Mapping[str, Any], head_dim: int
) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """Return the rotary embeddings of a family, and the positions that they serve."""
    if head_dim % 2:
        raise NotNative(f"its heads have {head_dim} elements, an odd number")
    if family in _NESTED:
        return nested_ropes(own, family), own["max_position_embeddings"]
    rope = rope_of(own, family)
    return (rope,), positions_of(rope, own["max_position_embeddings"])


def _layer_ropes(own: Mapping[str, Any], windows: Iterable[int], count: int) -> tuple[int, ...]:
    if count > 1:
        return tuple(1 if window else 0 for window in windows)
    return tuple(0 if _has_rope(own, layer) else -1 for layer, _ in enumerate(windows))


def _has_rope(own: Mapping[str, Any], layer: int) -> bool:
    marks, every = own.get("no_rope_layers"), own.get("no_rope_layer_interval")
    if marks is None:
        return every is None or bool((layer + 1) % every)
    if len(marks) != own["num_hidden_layers"]:
        raise ModelError(f"config.json has no_rope_layers of {len(marks)} layers")
    return bool(marks[layer])
