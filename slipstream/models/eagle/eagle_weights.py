"""EAGLE-3 heads on disk, as EAGLE itself, SpecForge, ModelOpt and speculators publish them.

A file `config.json` has the layer's fields on top, or in `transformer_layer_config`. Where it names
layers of the target on top, those are meant whose inputs are read, as vLLM counts; in
`eagle_config`, those whose outputs are, as SGLang and ModelOpt count. Without names the inputs of
layers 2, L / 2 and L - 3 are read. Nothing pickled is ever loaded.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import ModelMismatch, WeightsError
from slipstream.core.policy.options import EAGLE
from slipstream.models.dtypes import BFLOAT16, Array
from slipstream.models.format.architecture import Architecture, parse
from slipstream.models.format.families import account_fields, require_harmless
from slipstream.models.format.folder import PICKLED, reading, shown
from slipstream.models.format.resolve import resolve_head
from slipstream.models.format.safetensors_file import WHOLE, Safetensors
from slipstream.models.glide.glide_config import CONFIG_NAME, EagleConfig, default_layers
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.native.library import NotNative
from slipstream.models.native.weights import as_float32

_LAYER, _EAGLE = "transformer_layer_config", "eagle_config"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_RESIDUAL = "norm_before_residual"
_FLAGS = {
    _RESIDUAL: "norms_residual",
    "norm_before_fc": "norms_states",
    "fc_norm": "norms_each_state",
    "norm_output": "norms_output",
}
"""Fields that are true or false, and what the config calls them."""
_SPECULATORS = {"speculators_config", "embed_requires_grad", "enable_sp_ulysses"}
_OWN = {*_FLAGS, _LAYER, _EAGLE, LAYER_IDS, *_SPECULATORS, "speculators_model_type"}
_OWN |= {"draft_vocab_size", "target_hidden_size", "bias"}
_USUAL: dict[str, Any] = {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True}
_USUAL |= {"use_last_layernorm": True, "next_layer_regular": True, "parallel_draft_step": 1}
"""Fields of `eagle_config` that have one value in the heads that are read here."""
EMBEDDING, _HEAD, D2T, T2D = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
_ATTENTION = "midlayer.self_attn"
_FIRST = re.compile(r"^layers\.0\.")


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """The weights of a head by EAGLE-3's own names, in bfloat16 or float32; `vocab` [V_d] int64 has
    the target id of each head column, ascending.

    `input_norm.weight` is the norm of all states together, `fc_norm.0.weight` that of the first.
    Biases of `fc` and `o_proj` and `embed_tokens.weight` are there where the files have them. No
    head has `blocks` of 4 bits.
    """

    config: EagleConfig
    tensors: Mapping[str, Array]
    vocab: Array
    blocks: None = None


def read_eagle(folder: Path, num_layers: int) -> EagleWeights:
    """Read the head in a directory for a target of so many layers; `WeightsError` where files are
    missing, broken, pickled, or have what is not read here."""
    with reading(folder):
        if (folder / "pytorch_model.bin").is_file() and not any(folder.glob("*.safetensors")):
            raise WeightsError(f"{folder} has pytorch_model.bin alone: {PICKLED}")
        files = Safetensors(folder)
        names = {_FIRST.sub("midlayer.", it.removeprefix("model.")): it for it in files.names()}
        if _HEAD not in names and "midlayer.hidden_norm.weight" not in names:
            raise WeightsError(
                f"{folder} has no EAGLE-3 head: {_HEAD} and a hidden_norm are missing, as in heads"
                " of EAGLE-1 and EAGLE-2, which are not served"
            )
        config = _config(folder, names, num_layers)
        _check_tensors(folder, config, {name: files.shape(own) for name, own in names.items()})
        vocab = _vocab(folder, config, files, names)
        tensors = {name: own for name, own in names.items() if name not in (D2T, T2D)}
        if odd := [name for name, own in tensors.items() if not files.is_plain(own)]:
            raise WeightsError(f"{folder} has {shown(odd[:1])} quantised, which is not read here")
        return EagleWeights(config, {k: _wide(files.tensor(v)) for k, v in tensors.items()}, vocab)


def read_layers(folder: Path, num_layers: int) -> tuple[int, ...]:
    """Return the layers of a target of `num_layers` whose inputs the head in a directory reads."""
    with reading(folder):
        return _target_layers(_raw(folder), num_layers)


def head_layers(draft: str, num_layers: int) -> tuple[int, ...]:
    """Return what `read_layers` does for the head that a draft names; none for another draft."""
    is_head = draft.startswith(EAGLE)
    return read_layers(resolve_head(draft.removeprefix(EAGLE)), num_layers) if is_head else ()


def check_eagle_target(config: EagleConfig, parts: TargetParts) -> None:
    """Raise `ModelMismatch` unless the head fits the target."""
    ours = {"target_hidden_size": parts.hidden_size, "vocab_size": parts.vocab_size}
    for name, theirs in ours.items():
        if (own := getattr(config, name)) != theirs:
            what = name.removeprefix("target_")
            raise ModelMismatch(f"the head is for a {what} of {own}, the target's is {theirs}")


def eagle_shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that a head must have."""
    hidden, mlp, states = config.hidden_size, config.intermediate_size, len(config.target_layers)
    queries, keys = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
    projections = {"q": queries, "k": keys, "v": keys}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, states * config.target_hidden_size),
        "norm.weight": (hidden,),
        _HEAD: (config.head_size, hidden),
        **{f"midlayer.{norm}.weight": (hidden,) for norm in norms},
        **{f"{_ATTENTION}.{p}_proj.weight": (n, 2 * hidden) for p, n in projections.items()},
        f"{_ATTENTION}.o_proj.weight": (hidden, queries),
        **{f"midlayer.mlp.{part}_proj.weight": (mlp, hidden) for part in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": (hidden, mlp),
    }
    if config.attention_bias:
        shapes |= {f"{_ATTENTION}.{p}_proj.bias": (n,) for p, n in projections.items()}
    if config.qk_norm:
        shapes |= {f"{_ATTENTION}.{p}_norm.weight": (config.head_dim,) for p in "qk"}
    if config.norms_states:
        shapes["input_norm.weight"] = (states * config.target_hidden_size,)
    if config.norms_each_state:
        shapes |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(states)}
    return shapes


def _check_tensors(
    folder: Path, config: EagleConfig, shapes: Mapping[str, tuple[int, ...] | None]
) -> None:
    wanted = eagle_shapes(config)
    table = (config.vocab_size, config.hidden_size)
    known = {**wanted, f"{_ATTENTION}.o_proj.bias": wanted["norm.weight"]}
    known |= {"fc.bias": wanted["norm.weight"], EMBEDDING: table}
    known |= {D2T: (config.head_size,), T2D: (config.vocab_size,)}
    needed = {*wanted, *([] if config.hidden_size == config.target_hidden_size else [EMBEDDING])}
    if missing := sorted(needed - shapes.keys()):
        raise WeightsError(f"{folder} lacks {missing[0]} ({len(missing)} in all)")
    for name, shape in shapes.items():
        if name not in known:
            raise WeightsError(f"{folder} has {shown([name])}, of no use to EAGLE-3 heads here")
        if shape != known[name]:
            raise WeightsError(
                f"{folder} has {name} of the shape {list(shape or ())}, but its config says"
                f" {list(known[name])}"
            )


def _vocab(
    folder: Path, config: EagleConfig, files: Safetensors, names: Mapping[str, str]
) -> Array:
    """Return the target ids of the head's columns, by `d2t`, the ids' distances to their columns,
    or `t2d`, a mark for each id that has one."""
    found = [np.arange(config.vocab_size)] if config.head_size == config.vocab_size else []
    if T2D in names:
        found.append(np.flatnonzero(files.tensor(names[T2D], WHOLE)))
    if D2T in names:
        found.append(files.tensor(names[D2T], WHOLE) + np.arange(config.head_size))
    if not found:
        raise WeightsError(f"{folder} has {config.head_size} columns, but neither d2t nor t2d")
    vocab = found[-1].astype(np.int64)
    if any(not np.array_equal(vocab, other) for other in found):
        raise WeightsError(f"the head in {folder} has a d2t and a t2d that name other tokens")
    rising = bool((vocab[1:] > vocab[:-1]).all()) and len(vocab) == config.head_size
    if not rising or int(vocab[0]) < 0 or int(vocab[-1]) >= config.vocab_size:
        raise WeightsError(f"the ids of {folder} don't ascend within 0..{config.vocab_size - 1}")
    return vocab


def _wide(values: Array) -> Array:
    return values if values.dtype == BFLOAT16 else as_float32(values)


def _raw(folder: Path) -> dict[str, Any]:
    raw = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    if not isinstance(raw, dict):
        raise WeightsError(f"{folder / CONFIG_NAME} holds {type(raw).__name__}, not an object")
    eagle = raw.get(_EAGLE) or {}
    # Flags of a nested part count as those on top.
    return {**{name: eagle[name] for name in _FLAGS if name in eagle}, **raw, _EAGLE: eagle}


def _config(folder: Path, names: Mapping[str, str], num_layers: int) -> EagleConfig:
    raw = _raw(folder)
    layer = _layer(raw)
    flags = {own: raw.get(name, False) for name, own in _FLAGS.items()}
    head_size = raw.get("draft_vocab_size") or layer.vocab_size
    if type(head_size) is not int or not 0 < head_size <= layer.vocab_size:
        raise WeightsError(f"draft_vocab_size {head_size!r:.40} is none of {layer.vocab_size}")
    if odd := [name for name in _FLAGS if type(raw.get(name, False)) is not bool]:
        raise WeightsError(f"config.json has {odd[0]} of {raw[odd[0]]!r:.40}")
    return EagleConfig(
        vocab_size=layer.vocab_size,
        head_size=head_size,
        hidden_size=layer.hidden,
        target_hidden_size=int(raw.get("target_hidden_size") or layer.hidden),
        intermediate_size=layer.mlp,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        target_layers=_target_layers(raw, num_layers),
        rotary=layer.rotaries()[0],
        rms_norm_eps=layer.norm_eps,
        attention_bias=f"{_ATTENTION}.q_proj.bias" in names or bool(layer.biases),
        qk_norm=f"{_ATTENTION}.q_norm.weight" in names,
        **flags,
    )


def _layer(raw: Mapping[str, Any]) -> Architecture:
    """Return the architecture of the head's layer. Raises `WeightsError` for a field that would
    change results and is not read."""
    is_nested = _LAYER in raw
    _account_own(raw, is_nested=is_nested)
    layer = {k: v for k, v in (raw[_LAYER] if is_nested else raw).items() if k not in _OWN}
    if is_nested:  # it is the target's, and the head is its own
        layer.pop("tie_word_embeddings", None)
    if all(kind == "full_attention" for kind in layer.get("layer_types") or ()):
        layer.pop("layer_types", None)
    if not layer.get("use_sliding_window", True):
        layer.pop("sliding_window", None)
    try:
        found = parse(layer)
    except NotNative as reason:
        raise WeightsError(f"the head's layer can't be computed: {reason}") from None
    account_fields(layer)
    odd = {
        "num_hidden_layers": found.num_layers != 1,
        "sliding_window": any(found.windows),
        "hidden_act": found.is_gelu,
        "mlp_bias": any("mlp" in name for name in found.biases),
        "tie_word_embeddings": found.is_tied,
        "model_type": layer["model_type"] not in ("llama", "qwen2", "qwen3"),
    }
    if named := [name for name, is_odd in odd.items() if is_odd]:
        shown_value = f"{named[0]} of {layer.get(named[0])!r:.40}"
        raise WeightsError(f"config.json has {shown_value}, which heads have no reading of here")
    return found


def _account_own(raw: Mapping[str, Any], *, is_nested: bool) -> None:
    """Raise `WeightsError` for fields beside the layer's that would change results."""
    eagle = {**raw[_EAGLE], "model_type": "eagle3"}
    for name, value in _USUAL.items():
        if eagle.get(name) not in (None, value):
            raise WeightsError(f"config.json has {_EAGLE}.{name} of {eagle[name]!r:.40}")
    known = {"model_type", *_FLAGS, *_USUAL, LAYER_IDS, "parallel_draft_heads_num_layers"}
    require_harmless(eagle, known, f"{_EAGLE}.")
    if not is_nested:
        return
    require_harmless({**raw, "model_type": "speculators"}, _OWN)
    if (kind := raw.get("speculators_model_type")) != "eagle3" or _RESIDUAL not in raw:
        raise WeightsError(
            f"config.json has the speculator {kind!r:.40} with {_RESIDUAL} of"
            f" {raw.get(_RESIDUAL)}, but must say eagle3, and true or false"
        )


def _target_layers(raw: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    inputs, outputs = raw.get(LAYER_IDS), raw[_EAGLE].get(LAYER_IDS)
    layers = inputs or [layer + 1 for layer in outputs or ()]
    layers = layers or default_layers(num_layers)
    if not all(type(layer) is int and 0 <= layer <= num_layers for layer in layers):
        raise ModelMismatch(
            f"the head reads the inputs of layers {layers!r:.60}, the target has {num_layers}"
        )
    return tuple(layers)
