"""Descriptions of drafts that read their target: shapes, the target, the lag of training."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from slipstream.core.errors import WeightsError
from slipstream.models.format.folder import reading, shown
from slipstream.models.format.gguf_file import MAX_LAYERS

if TYPE_CHECKING:
    from slipstream.models.format.rope import Rotary

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class GlideConfig:
    """Shapes and origin of a GliDe draft (GliDe with a CaPE, section 4.1).

    `target_layers` are read in this order, one cross-attention sublayer each, by every draft
    layer; with none, the draft has no cross-attention (the paper's figure 4, "vanilla").
    `head_size` is the number of columns of the trimmed head. `max_lag` is the largest distance
    between a query and the newest target key it could see in training: 1 means "the position just
    before", and 0, for a draft that reads no layers and only for one, that there is none to keep.
    """

    target_model: str
    tokenizer_hash: str
    vocab_size: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_layers: tuple[int, ...]
    max_lag: int
    num_layers: int = 1
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    qk_norm: bool = False
    dtype: str = "bfloat16"
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise WeightsError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.num_layers > MAX_LAYERS:
            raise WeightsError(f"num_layers is {self.num_layers}, it must be at most {MAX_LAYERS}")
        _check_layers(self.target_layers, self.max_lag)
        if self.num_heads % self.num_kv_heads:
            raise WeightsError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_size > self.vocab_size:
            raise WeightsError(
                f"head_size {self.head_size} exceeds the vocabulary of {self.vocab_size}"
            )
        if self.format_version != FORMAT_VERSION:
            raise WeightsError(
                f"format_version is {self.format_version}, this build reads {FORMAT_VERSION}"
            )


def _check_layers(layers: tuple[int, ...], max_lag: int) -> None:
    if min(layers, default=0) < 0:
        raise WeightsError(f"target_layers {layers!r:.60} must name layers from 0 up")
    if len(set(layers)) != len(layers):
        raise WeightsError(f"target_layers {layers!r:.60} names a layer twice")
    if max_lag < 1 if layers else max_lag != 0:
        raise WeightsError(
            f"max_lag is {max_lag} with {len(layers)} target_layers, it must be at least 1 with"
            " some and 0 with none"
        )


_KINDS: Mapping[Any, Any] = {int: int, float: int | float, str: str, bool: bool}
"""Types of the fields, and what JSON may have for them."""
_LARGEST = 2**31 - 1
_POSITIVE = (
    "vocab_size",
    "head_size",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "num_layers",
)


def read_config(directory: Path) -> GlideConfig:
    """Read `config.json`; WeightsError when it is missing, broken or of another shape."""
    path = directory / CONFIG_NAME
    with reading(path):
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict):
            raise WeightsError(f"{path} holds {type(raw).__name__}, not an object")
        known = {field.name for field in fields(GlideConfig)}
        unknown = sorted(set(raw) - known)
        if unknown:
            raise WeightsError(f"{path} has unknown fields: {shown(unknown)}")
        for member in fields(GlideConfig):
            value, kind = raw.get(member.name), _KINDS.get(member.type, object)
            is_large = isinstance(value, int) and abs(value) > _LARGEST
            if member.name in raw and (is_large or not isinstance(value, kind)):
                raise WeightsError(f"{path} has {member.name} of {value!r:.40}, which can't be one")
        layers = tuple(int(layer) for layer in raw["target_layers"])
        return GlideConfig(**{**raw, "target_layers": layers})


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shapes of an EAGLE-3 draft (EAGLE-3, arXiv 2503.01840, section 3).

    `target_layers` are the layers of the target whose inputs [target_hidden_size] are read: layer
    l's input is what layer l - 1 gives, the number of layers stands for the last one's output.
    `head_size` is the number of columns of its head. With `norms_residual` the residual stream
    starts behind the norm of the fused state; with `norms_states` all states together, and with
    `norms_each_state` each alone, pass a norm before they are fused; with `norms_output` the next
    step reads the state behind the last norm. `max_lag` is the largest distance between the newest
    state that is read and a token.
    """

    vocab_size: int
    head_size: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_layers: tuple[int, ...]
    rotary: "Rotary"
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    qk_norm: bool = False
    norms_residual: bool = False
    norms_states: bool = False
    norms_each_state: bool = False
    norms_output: bool = False
    max_lag: int = 32
    num_layers: ClassVar = 1


def default_layers(num_layers: int) -> tuple[int, int, int]:
    """Return the target layers whose inputs a head reads by default: low, middle and high."""
    return 2, num_layers // 2, num_layers - 3
