"""Configuration of the model in a GGUF file, in the terms of transformers' config.json.

Every field under the architecture's name is read, at a value that changes nothing, or refused by
its name. Tables in gguf.json say what is read of which architecture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.errors import WeightsError
from slipstream.models.format.gguf_file import MAX_LAYERS, TABLES, GgufFile
from slipstream.models.format.gguf_tokenizer import (
    CONTROL,
    USER_DEFINED,
    GgufFields,
    TokenizerFields,
)


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """Contents of an architecture's files. `model_type` is transformers' name, `numbers` names
    further fields and what config.json calls them, `layer_tensors` the names of a layer's tensors,
    `flags` fields that turn off what the model needs.

    `in_pairs`: rows of queries and keys that are rotated together are neighbours; `adds_one`:
    norms are stored with the 1 that the model adds; `windowed` is the name where layers have
    windows.
    """

    model_type: str
    layer_tensors: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    in_pairs: bool = False
    adds_one: bool = False
    windowed: str | None = None


def _family(name: str, own: Mapping[str, Any]) -> GgufFamily:
    tensors = {**TABLES["layer_tensors"], **own.get("layer_tensors", {})}
    return GgufFamily(**{"model_type": name, **own, "layer_tensors": tensors})


FAMILIES = {name: _family(name, own) for name, own in TABLES["families"].items()}
"""The architectures of files that can be read, by the names that files give them."""
LONG_FACTORS = ("rope_factors_short", "rope_factors_long")
_ORIGINAL = "original_max_position_embeddings"
_PERIOD, _LARGEST = 6, 62
"""Gemma 3: period of layers without a window; layers of the largest model, the one whose
queries are scaled by other than the size of a head."""
_TURN_ENDS, _HARMONY_ENDS = set(TABLES["turn_ends"]), set(TABLES["harmony_ends"])
"""Control tokens that end a turn, also in files that have no field for them."""
_SCALING_KINDS = ("none", "linear", "yarn", "longrope")
_UNSET: tuple[object, ...] = (0, False, "", [])
"""Values at which any field changes nothing."""


def read_config(file: GgufFile) -> dict[str, Any]:
    """Return what config.json has for the model in a file.

    Raises `WeightsError` for a field that is missing, of another type, or not to be honoured.
    """
    kind = file.fields.get("general.type", "model")
    if kind != "model":
        raise WeightsError(f"{file.name} is a GGUF file of the type {kind!r:.40}, not of a model")
    name = str(file.fields.get("general.architecture", "none"))
    if name not in FAMILIES:
        raise WeightsError(
            f"{file.name} is a GGUF file of the architecture {name!r:.40}, but those that can be"
            f" read are {', '.join(FAMILIES)}"
        )
    fields = _Fields(file, name)
    found = _sizes(fields) | _attention(fields)
    found["eos_token_id"] = turn_ends(file) or None
    for theirs, ours in fields.family.numbers.items():
        if value := fields.get(theirs, float, 0.0):
            found[ours] = value
        elif ours == "attention_multiplier":
            raise fields.refused(theirs, "but must be another number")
    if name == "phi3":
        length = fields.get("rope.scaling.original_context_length", int, 0)
        longest = found["max_position_embeddings"]
        found[_ORIGINAL] = length or longest
    if name == "gemma3":
        found |= _alternating(fields, found)
    else:
        found["rope_parameters"] = _rope(fields, found)
    fields.check_all_read()
    return found


class _Fields(GgufFields):
    """The fields under the architecture's name."""

    def __init__(self, file: GgufFile, name: str) -> None:
        super().__init__(file, f"{name}.")
        self.name, self.family = name, FAMILIES[name]

    def count(self, name: str, *default: int) -> int:
        """Return a number above 0. Raises `WeightsError` as `get` does."""
        value: int = self.get(name, int, *default)
        if value < 1:
            raise self.refused(name, "but must be above 0")
        return value

    def factors(self, name: str) -> list[float] | None:
        """Return the numbers of a tensor of float32, None where there is none."""
        found = self.file.tensors.get(name)
        if found is None:
            return None
        if found.type != "F32" or len(found.shape) != 1:
            raise WeightsError(f"{name} in {self.file.name} is of the type {found.type}")
        return list(map(float, self.file.view(name).cast("f").tolist()))

    def check_all_read(self) -> None:
        """Raise `WeightsError` for a field that was not read and may change an answer."""
        for name, value in self.given.items():
            is_known = name in self.names_read or name in TABLES["no_effect"]
            if not is_known and value not in (*_UNSET, *TABLES["neutral"].get(name, ())):
                raise self.refused(name, f"which is not supported for {self.name}")


def _sizes(fields: _Fields) -> dict[str, Any]:
    embedding = fields.file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightsError(f"the weights in {fields.file.name} lack token_embd.weight")
    return {
        "model_type": fields.family.model_type,
        "hidden_size": fields.count("embedding_length"),
        "intermediate_size": fields.count("feed_forward_length"),
        "num_hidden_layers": fields.get("block_count", int),
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.get("attention.layer_norm_rms_epsilon", float),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in fields.file.tensors,
    }


def _attention(fields: _Fields) -> dict[str, Any]:
    heads = fields.count("attention.head_count")
    hidden = fields.count("embedding_length")
    dim = fields.count("attention.key_length", max(hidden // heads, 1))
    if fields.count("attention.value_length", dim) != dim:
        raise fields.refused("attention.value_length", f"but keys have {dim}")
    for flag in ("attention.causal", *fields.family.flags):
        if not fields.get(flag, bool, True):
            raise fields.refused(flag, "but must be true")
    found: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", heads),
        "head_dim": dim,
    }
    if fields.family.windowed is None:
        return found
    if window := fields.get("attention.sliding_window", int, 0):
        found["sliding_window"] = window
        found["model_type"] = fields.family.windowed
    return found


def turn_ends(file: GgufFile) -> list[int]:
    """Return the ids that end a turn: those of the fields for ends of text, turn and message, and
    added tokens with the usual names but the unknown token; `</s>` of users is HTML's."""
    fields = TokenizerFields(file)
    roles = ("eos", "eot", "eom", "unknown")
    *ids, unknown = (fields.get(f"{role}_token_id", int, None) for role in roles)
    added = fields.numbers(USER_DEFINED)
    added.pop("</s>", None)
    added |= fields.numbers(CONTROL)
    names = _TURN_ENDS & added.keys()
    if len(_HARMONY_ENDS & names) > 1:  # where <|end|> ends a message within a turn
        names -= {"<|end|>"}
    named = {added[token] for token in names}
    return sorted((named - {unknown}).union(it for it in ids if it is not None))


def _rope(fields: _Fields, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of all layers, in the style of transformers 5."""
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": fields.get("rope.freq_base", float, 10000.0),
    }
    dim = config["head_dim"]
    if (width := fields.count("rope.dimension_count", dim)) != dim:
        if fields.name != "phi3":
            raise fields.refused("rope.dimension_count", f"but heads have {dim}")
        rope["partial_rotary_factor"] = width / dim
    rope |= _scaling(fields)
    if length := fields.get("rope.scaling.original_context_length", int, 0):
        rope |= {} if rope["rope_type"] == "default" else {_ORIGINAL: length}
    if fields.name == "phi3" or rope["rope_type"] == "longrope":
        rope |= _long_factors(fields, config, rope)
    return rope


def _scaling(fields: _Fields) -> dict[str, Any]:
    older = fields.get("rope.scale_linear", float, 0.0)
    factor = fields.get("rope.scaling.factor", float, older)
    kind = fields.get("rope.scaling.type", str, "linear" if factor else "none")
    if kind not in _SCALING_KINDS:
        known = ", ".join(_SCALING_KINDS)
        raise fields.refused("rope.scaling.type", f"but must be one of {known}")
    if kind == "longrope" and factor not in (0.0, 1.0):
        raise fields.refused("rope.scaling.factor", "but longrope has factors in tensors")
    if kind == "none" or factor in (0.0, 1.0):
        return {"rope_type": kind} if kind == "longrope" else {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        for name in ("beta_fast", "beta_slow"):
            if value := fields.get(f"rope.scaling.yarn_{name}", float, 0.0):
                scaling[name] = value
        if fields.get(name := "rope.scaling.yarn_ext_factor", float, 1.0) not in (-1, 1):
            raise fields.refused(name, "but yarn is computed with 1.0")
    return scaling


def _long_factors(
    fields: _Fields, config: Mapping[str, Any], rope: Mapping[str, Any]
) -> dict[str, Any]:
    short, long = (fields.factors(f"{name}.weight") for name in LONG_FACTORS)
    longest = config.get(_ORIGINAL, config["max_position_embeddings"])
    is_plain = longest >= config["max_position_embeddings"]
    if short is None and rope["rope_type"] == "default" and is_plain:
        return {}
    if short is None:
        raise WeightsError(f"the weights in {fields.file.name} lack {LONG_FACTORS[0]}.weight")
    scale = fields.get("rope.scaling.attn_factor", float, 0.0)
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long or short,
        _ORIGINAL: rope.get(_ORIGINAL, longest),
        "attention_factor": scale or (None if fields.name == "phi3" else 1.0),
    }


def _alternating(fields: _Fields, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Gemma 3: windows and rotary embeddings of two kinds of layers."""
    layers, heads = min(config["num_hidden_layers"], MAX_LAYERS), config["num_attention_heads"]
    period = fields.get("attention.sliding_window_pattern", int, _PERIOD)
    theta = fields.get("rope.freq_base_swa", float, 10000.0)
    if "sliding_window" not in config:
        raise fields.refused("attention.sliding_window", "but must be above 0")
    kinds = ("sliding_attention", "full_attention")
    dim = config["hidden_size"] // heads if layers == _LARGEST else config["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": dim,
        "layer_types": [kinds[(layer + 1) % period == 0] for layer in range(layers)],
        "rope_parameters": {
            kinds[0]: {"rope_type": "default", "rope_theta": theta},
            kinds[1]: _rope(fields, config),
        },
    }
