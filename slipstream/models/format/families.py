"""Families of decoders by families.json: fields of config.json with transformers' defaults, forms,
and what of a file changes nothing. All else is at its neutral value, or refused by its name.

There `unread` has values of fields that are not read, but say what is so anyway; `harmless` are how
a model was trained, saved or should be sampled, and what transformers reads wherever it is.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slipstream.core.errors import WeightsError
from slipstream.models.format.folder import shown

Norms = Literal["before", "after", "both"]
"""Position of a block's norms: on its input, on its output, or on both."""
HeadNorms = Literal["none", "head", "all"]
"""Extent of one norm of queries or keys: nothing, each head, or all heads together."""
TABLE = json.loads((Path(__file__).parent / "families.json").read_text(encoding="utf-8"))
"""Facts of families and of rotary embeddings."""
_FAMILIES: dict[str, Any] = TABLE["families"]
_UNREAD: dict[str, dict[str, Any]] = TABLE["unread"]
_WRAPPERS = {"gemma3": "gemma3_text", "mistral3": "mistral"}
"""Models of images and text, whose text alone is served, and the family of that."""
_OUTER = {"text_config", "vision_config", "mm_tokens_per_image", "tie_word_embeddings"}
_OUTER |= {"vision_feature_layer", "projector_hidden_act", "spatial_merge_size"}
_TYPES = {"int": int, "float": float, "list": list, "dict": dict}
_EOS = "eos_token_id"
_ANY = {"max_window_layers", "num_hidden_layers"}
_NULL = {"sliding_window", _EOS, "original_max_position_embeddings"}
"""Fields that may be null whatever their default is."""
_MOST = 2**62
_SCALE = re.compile(r".*(scale|scaling|multiplier|factor|scalar|pct)")
_HARMLESS = re.compile("|".join(TABLE["harmless"]))
_UNREAD_TENSORS = re.compile("|".join(TABLE["unread_tensors"]))


@dataclass(frozen=True, slots=True)
class Form:
    """Form that all models of a family have.

    is_fused: queries, keys and values are one matrix in files, and so are gate and up projection;
    has_unit_offset: norms multiply by 1 + weight; has_root_scale: embeddings are multiplied by the
    root of their size, rounded to their type; window_every: of so many layers the last sees all
    positions; biases: linears that always have one.
    """

    norms: Norms = "before"
    head_norms: HeadNorms = "none"
    is_fused: bool = False
    has_unit_offset: bool = False
    has_root_scale: bool = False
    window_every: int = 0
    biases: Sequence[str] = ()


def defaults(family: str) -> dict[str, Any]:
    """Return the fields that are read of a family's config.json, with their defaults."""
    own = _FAMILIES[family]
    return {**(defaults(own["like"]) if "like" in own else TABLE["common"]), **own["fields"]}


FORMS = {name: Form(**own.get("form", {})) for name, own in _FAMILIES.items()}


def fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a family has, checked, with defaults for those that are not given.

    Raises `WeightsError` for a value of another type.
    """
    found = defaults(config["model_type"])
    for name, default in found.items():
        if name in config:
            kind = _TYPES.get(TABLE["types"].get(name), type(default))
            is_null = config[name] is None and (default is None or kind is bool or name in _NULL)
            found[name] = default if is_null and kind is bool else config[name]
            if not is_null and not _is_of(name, config[name], kind):
                raise WeightsError(f"config.json has {name} of {config[name]!r:.60}")
    return found


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config.json that describes a decoder of text."""
    family = _WRAPPERS.get(str(config.get("model_type")))
    own = config.get("text_config")
    if family is None or not isinstance(own, dict) or own.get("model_type", family) != family:
        return config
    outer = {name: config[name] for name in ("tie_word_embeddings", _EOS) if name in config}
    return {**own, **outer, "model_type": family}


def account_fields(config: Mapping[str, Any]) -> None:
    """Raise `WeightsError` for a field of a family's config.json that is not read, unless it is
    neutral or known to change nothing."""
    own = text_config(config)
    if own is not config:
        require_harmless(config, _OUTER)
    family = own["model_type"]
    require_harmless(own, defaults(family).keys() - _UNREAD.get(family, {}).keys())


def require_harmless(config: Mapping[str, Any], known: Collection[str], prefix: str = "") -> None:
    """Raise `WeightsError` for a field that is neither known nor harmless nor neutral."""
    usual = _UNREAD.get(config["model_type"], {})
    for name, value in config.items():
        is_harmless = not prefix and _HARMLESS.fullmatch(name) is not None
        is_off = name == "sliding_window" and config.get("use_sliding_window") is False
        is_known = name in known or is_harmless or is_off or value in usual.get(name, ())
        if not is_known and not _is_neutral(name, value):
            raise WeightsError(
                f"config.json has {prefix}{shown([name])} of {value!r:.60}, which models of type"
                f" {config['model_type']} have no reading of here"
            )


def require_read(names: Iterable[str], where: str, family: str) -> None:
    """Raise `WeightsError` for tensors, by name, that nothing reads and that are not computed."""
    if left := sorted(name for name in names if not _UNREAD_TENSORS.fullmatch(name)):
        raise WeightsError(
            f"the weights in {where} have {shown(left[:1])} ({len(left)} in all), which models of"
            f" type {family} have no reading of here"
        )


def is_number(value: Any) -> bool:
    """Return whether a value is a positive number, and no absurd one."""
    return type(value) in (int, float) and bool(0 < value < _MOST)


def _is_neutral(name: str, value: Any) -> bool:
    if name == "is_causal":
        return value is not False
    if name == "layer_types" and isinstance(value, list):
        return all(kind == "full_attention" for kind in value)
    if type(value) in (int, float):
        return bool(value == (1 if _SCALE.fullmatch(name) else 0))
    return not value


def _is_of(name: str, value: Any, kind: type) -> bool:
    if name == _EOS:
        ids = value if isinstance(value, list) else [value]
        return all(type(token) is int for token in ids)
    if kind is float:
        return is_number(value)
    return type(value) is kind and (kind is not int or name in _ANY or is_number(value))
