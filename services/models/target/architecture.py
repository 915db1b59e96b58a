"""Sizes and parts of decoders: by config.json for families with a native forward, else by a model.

What config.json has otherwise than these families is refused with a reason: transformers then
loads the model, and torch computes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import ModelError
from slipstream.models.kv.pool import KvLayout
from slipstream.models.native.library import NotNative
from slipstream.models.store.gguf_file import MAX_LAYERS
from slipstream.models.target.rope import STATIC, Rotary, is_number, lacking, rotary

FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "smollm3"}
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_DEFAULT_THETA = {"smollm3": 2000000.0}
_DEFAULT_EOS = {"llama": 2, "mistral": 2, "smollm3": 128001}
_WINDOW_ON_REQUEST = {"qwen2", "qwen3", "smollm3"}
"""Families whose sliding window counts only with `use_sliding_window`."""
_SILU = {"silu", "swish"}
_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and parts of a decoder. `rope` is as `rope.rotary` takes it, `eos_ids` as given."""

    vocab_size: int
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: int
    norm_eps: float
    context_length: int
    rope: Mapping[str, Any]
    is_tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    has_head_norms: bool
    eos_ids: frozenset[int]

    def rotary(self) -> Rotary:
        """Return the frequencies of positions."""
        return rotary(self.rope, self.head_dim)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor but the head."""
        yield EMBEDDING, (self.vocab_size, self.hidden)
        yield NORM, (self.hidden,)
        for at in range(self.num_layers):
            yield from self.layer(at)

    def layer(self, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor of a layer."""
        for name, shape in self._parts():
            yield f"model.layers.{index}.{name}", shape

    def _parts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        linears = (
            ("self_attn.q_proj", queries, self.hidden, self.qkv_bias),
            ("self_attn.k_proj", keys, self.hidden, self.qkv_bias),
            ("self_attn.v_proj", keys, self.hidden, self.qkv_bias),
            ("self_attn.o_proj", self.hidden, queries, self.out_bias),
            ("mlp.gate_proj", self.mlp, self.hidden, self.mlp_bias),
            ("mlp.up_proj", self.mlp, self.hidden, self.mlp_bias),
            ("mlp.down_proj", self.hidden, self.mlp, self.mlp_bias),
        )
        for name, outputs, inputs, has_bias in linears:
            yield f"{name}.weight", (outputs, inputs)
            if has_bias:
                yield f"{name}.bias", (outputs,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.weight", (self.hidden,)
        for name in ("q_norm", "k_norm") if self.has_head_norms else ():
            yield f"self_attn.{name}.weight", (self.head_dim,)


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
    is_on = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if is_on else None
    kinds = getattr(config, "layer_types", None)
    return served_positions(int(config.max_position_embeddings), window, kinds)


def parse(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a config.json.

    Raises `NotNative` for one without a native forward, `ModelError` for attention that can't be
    cached.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise NotNative(f"models of type {family} have no native forward")
    if config.get("quantization_config") is not None:
        raise NotNative("its weights are quantised")
    if config.get("hidden_act", "silu") not in _SILU:
        raise NotNative("its MLP is not gated by SiLU")
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    kv_heads = _kv_heads(config, heads)
    if hidden % heads or heads % kv_heads:
        raise NotNative(f"{hidden} elements, {heads} heads and {kv_heads} key heads do not divide")
    attention_bias = bool(config.get("attention_bias")) and family not in ("mistral", "qwen2")
    return Architecture(
        vocab_size=_count(config, "vocab_size"),
        hidden=hidden,
        num_layers=_num_layers(config),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(config, hidden // heads),
        mlp=_count(config, "intermediate_size"),
        norm_eps=_number(config, "rms_norm_eps"),
        context_length=served_positions(
            _count(config, "max_position_embeddings"), _window(config), config.get("layer_types")
        ),
        rope=_rope(config),
        is_tied=bool(config.get("tie_word_embeddings", family == "smollm3")),
        qkv_bias=attention_bias or family == "qwen2",
        out_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias")) and family in ("llama", "smollm3"),
        has_head_norms=family == "qwen3",
        eos_ids=eos_ids(config.get("eos_token_id", _DEFAULT_EOS.get(family))),
    )


def served_positions(limit: int, window: int | None, kinds: Iterable[str] | None) -> int:
    """Return the positions that attention of these kinds of layers can be served for; `window` is
    the sliding one, if it counts.

    Raises `ModelError` for attention that the cache can't serve.
    """
    if window:
        return min(limit, int(window))
    if any(kind != "full_attention" for kind in kinds or ()):
        raise ModelError(f"attention of the kind {sorted(set(kinds or ()))} can't be cached")
    return limit


def eos_ids(value: Any) -> frozenset[int]:
    """Return the ids of a field `eos_token_id`: a number, several or none."""
    ids = value if isinstance(value, list | tuple) else [value]
    return frozenset(token for token in ids if isinstance(token, int))


def _window(config: Mapping[str, Any]) -> int | None:
    if config["model_type"] == "mistral" and "sliding_window" not in config:
        raise NotNative("its config.json has no sliding_window")
    is_on = config.get("use_sliding_window", config["model_type"] not in _WINDOW_ON_REQUEST)
    window: int | None = config.get("sliding_window") if is_on else None
    return window


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters in the style of transformers 5, from either style."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = config.get("rope_theta", _DEFAULT_THETA.get(config["model_type"], 10000.0))
    rope = {"rope_theta": theta, **given}
    rope.setdefault("rope_type", given.get("type", "default"))
    rope.setdefault(_ORIGINAL, config["max_position_embeddings"])
    if config.get(_ORIGINAL):
        rope[_ORIGINAL] = config[_ORIGINAL]
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if rope["rope_type"] not in STATIC or partial not in (None, 1, 1.0):
        raise NotNative(f"its rotary embedding is of the kind {rope['rope_type']}")
    if name := lacking(rope):
        raise NotNative(f"its rotary embedding has no {name}")
    if not _has_rope_everywhere(config):
        raise NotNative("some of its layers have no rotary embedding")
    return rope


def _has_rope_everywhere(config: Mapping[str, Any]) -> bool:
    marks = config.get("no_rope_layers")
    return config["model_type"] != "smollm3" if marks is None else all(marks)


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config["model_type"] == "llama" and "num_key_value_heads" not in config:
        return heads
    is_null = "num_key_value_heads" in config and config["num_key_value_heads"] is None
    return heads if is_null else _count(config, "num_key_value_heads")


def _head_dim(config: Mapping[str, Any], usual: int) -> int:
    needs_one = config["model_type"] == "qwen3"
    has_one = config.get("head_dim") is not None
    dim = _count(config, "head_dim") if needs_one or has_one else usual
    if dim % 2:
        raise NotNative(f"its heads have {dim} elements, an odd number")
    return dim


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NotNative(f"its config.json has no {name}")
    return value


def _num_layers(config: Mapping[str, Any]) -> int:
    count = _count(config, "num_hidden_layers")
    if count > MAX_LAYERS:
        raise NotNative(f"it has {count} layers")
    return count


def _number(config: Mapping[str, Any], name: str) -> float:
    value: Any = config.get(name)
    if not is_number(value):
        raise NotNative(f"its config.json has no {name}")
    return float(value)
