"""Weights in the blocks of a GGUF file, as the native forward takes them: none is dequantised.

The file is read in the terms of transformers' checkpoints: configuration, names, order of rows.
Families that native code does not serve are left to transformers' own reader.
"""

import math
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import DTYPES, FLOAT32, Array
from slipstream.models.native.library import NotNative
from slipstream.models.native.source import WeightSource, check_tensors
from slipstream.models.native.weights import FLOAT16, KINDS, Weights, as_float32, of_type, plain
from slipstream.models.store.gguf_file import GgufFile, GgufTensor
from slipstream.models.target.architecture import EMBEDDING, HEAD, parse
from slipstream.models.target.rope import Rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("llama", "qwen2", "qwen3")
_ROTARY_IN_PAIRS = "llama"
"""The family whose queries and keys lie in pairs of rows that are rotated together."""
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_ROPE_FACTORS = "rope_freqs.weight"
_ROPE_SCALING = {"none", "linear", "yarn"}
PLAIN = {"F32": DTYPES["float32"], "F16": DTYPES["float16"], "BF16": DTYPES["bfloat16"]}
"""The types that are no blocks."""


class _GgufRows(NamedTuple):
    """A tensor's rows: in a plain type as they are, else the bytes of their blocks."""

    type: str
    values: Array


class GgufSource(WeightSource):
    """The weights of a GGUF file, by transformers' names."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        """Check that all is there. Raises `WeightsError` for a broken file, `NotNative` for one
        that native code can't read."""
        self._file = GgufFile(path)
        self.path, self.name, self.dtype = path, path.name, dtype
        self._family = str(self._file.fields.get("general.architecture", ""))
        if self._family not in FAMILIES:
            raise NotNative(f"GGUF files of {self._family or 'no family'} have no native reader")
        self._config = self._read_config()
        self.architecture = parse(self._config)
        self.is_tied = self.architecture.is_tied
        check_tensors(self)
        check_types(self)
        own, factors = self.architecture.rotary(), self._rope_factors
        frequencies = own.inv_freq if factors is None else own.inv_freq / factors
        self.rotary = Rotary(frequencies, own.attention_scaling)

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self._file.tensors.get(_gguf_name(name))
        return None if found is None else found.shape

    def type_of(self, name: str) -> str:
        """Return a tensor's type. Raises `WeightsError` where there is none."""
        return self._tensor(name).type

    def matrix(self, name: str) -> Weights:
        return _packed(self._rows(name), self.dtype)

    def vector(self, name: str) -> Array:
        """See `WeightSource.vector`; norms and biases stay as exact as the file has them."""
        return as_float32(self._rows(name).values)

    def dense(self, name: str) -> Array:
        return self._table if name == EMBEDDING else _dense(self._rows(name), self.dtype)

    def embedding(self) -> Weights:
        rows = self._rows(EMBEDDING)
        return plain(rows.values) if rows.type == "F32" else _packed(rows, self.dtype)

    def head_rows(self, ids: Array) -> Array:
        rows = self._rows(EMBEDDING if self.is_tied else HEAD)
        return _dense(_GgufRows(rows.type, rows.values[ids]), FLOAT32)

    def reference(self) -> "PreTrainedModel":
        from transformers import AutoConfig

        from slipstream.models.target.transformers_model import lent_model

        try:
            config = AutoConfig.for_model(**self._config)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            raise WeightsError(f"{self.name} does not describe a model ({error})") from error
        model = lent_model(self, config)
        if self._rope_factors is not None:
            rotary = model.base_model.rotary_emb
            rotary.inv_freq /= rotary.inv_freq.new_tensor(self._rope_factors)
        found: PreTrainedModel = model
        return found

    def release(self, layer: int) -> None:
        self._file.release()

    def identity(self) -> str:
        from slipstream.models.store.digests import weights_digest

        return weights_digest(self.path)

    def weights_type(self) -> str:
        """See `WeightSource.weights_type`; all types, that of the most weights first."""
        sizes: Counter[str] = Counter()
        for tensor in self._file.tensors.values():
            if len(tensor.shape) > 1:
                sizes[tensor.type] += math.prod(tensor.shape)
        return "+".join(name for name, _ in sizes.most_common())

    @cached_property
    def _table(self) -> Array:
        """The embedding dequantised, once in memory for all readers."""
        return _dense(self._rows(EMBEDDING), self.dtype)

    @cached_property
    def _rope_factors(self) -> Array | None:
        """Divisors of the rotary frequencies [head_dim / 2]; None without any."""
        tensor = self._file.tensors.get(_ROPE_FACTORS)
        return None if tensor is None else self._stored(_ROPE_FACTORS, tensor).values

    def _rows(self, name: str) -> _GgufRows:
        """Return a tensor with rows in transformers' order."""
        rows = self._stored(_gguf_name(name), self._tensor(name))
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        which = heads.get(name.split(".")[-2])
        if self._family != _ROTARY_IN_PAIRS or which is None:
            return rows
        shape = rows.values.shape
        pairs = rows.values.reshape(self._config[which], -1, 2, *shape[1:])
        return _GgufRows(rows.type, np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape))

    def _stored(self, name: str, tensor: GgufTensor) -> _GgufRows:
        if len(tensor.shape) > 2:
            raise WeightsError(f"{name} in {self.name} has {len(tensor.shape)} dimensions")
        if not tensor.num_bytes:
            raise WeightsError(f"{name} in {self.name} is empty")
        values = np.frombuffer(self._file.view(tensor), np.uint8)
        if dtype := PLAIN.get(tensor.type):
            return _GgufRows(tensor.type, values.view(dtype).reshape(tensor.shape))
        return _GgufRows(tensor.type, values.reshape(*tensor.shape[:-1], -1))

    def _tensor(self, name: str) -> GgufTensor:
        found = self._file.tensors.get(_gguf_name(name))
        if found is None:
            raise WeightsError(f"the weights in {self.name} lack {_gguf_name(name)}")
        return found

    def _read_config(self) -> dict[str, Any]:
        """Return what config.json has for such a model. Raises `WeightsError` for a field that is
        missing or no number."""
        heads = self._number("attention.head_count")
        hidden = self._number("embedding_length")
        found = {
            "model_type": self._family,
            "hidden_size": hidden,
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._number("attention.head_count_kv", heads),
            "head_dim": self._number("attention.key_length", hidden // max(heads, 1)),
            "max_position_embeddings": self._number("context_length"),
            "rms_norm_eps": self._field("attention.layer_norm_rms_epsilon", float),
            "vocab_size": self._tensor(EMBEDDING).shape[0],
            "tie_word_embeddings": "output.weight" not in self._file.tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._file.tensors,
            "hidden_act": "silu",
            "rope_parameters": self._rope(),
        }
        for role in ("bos", "eos", "pad"):
            number = self._file.fields.get(f"tokenizer.ggml.{role}_token_id")
            if isinstance(number, int):
                found[f"{role}_token_id"] = number
        return found

    def _rope(self) -> dict[str, Any]:
        rope: dict[str, Any] = {
            "rope_type": "default",
            "rope_theta": self._field("rope.freq_base", float, 10000.0),
        }
        kind = self._file.fields.get(f"{self._family}.rope.scaling.type", "none")
        if kind not in _ROPE_SCALING:
            raise WeightsError(f"{self.name} has rotary scaling of the kind {kind!r}")
        if kind == "none":
            return rope
        rope |= {"rope_type": kind, "factor": self._field("rope.scaling.factor", float, 1.0)}
        if kind == "yarn":
            length = self._number("rope.scaling.original_context_length")
            rope["original_max_position_embeddings"] = length
        return rope

    def _number(self, name: str, default: int | None = None) -> int:
        value: int = self._field(name, int, default)
        if value < 1:
            raise WeightsError(f"{self.name} has a field {name} of {value}")
        return value

    def _field(self, name: str, kind: type, default: Any = None) -> Any:
        value = self._file.fields.get(f"{self._family}.{name}", default)
        if not isinstance(value, kind):
            raise WeightsError(f"{self.name} has a field {name} of {value!r}")
        return value


def check_types(source: GgufSource) -> None:
    """Raise `WeightsError` for a norm, a bias or rotary factors in blocks: they are read as they
    are."""
    names = [name for name, shape in source.architecture.tensors() if len(shape) == 1]
    for name in [*names, _ROPE_FACTORS] if source.has(_ROPE_FACTORS) else names:
        if (kind := source.type_of(name)) not in PLAIN:
            raise WeightsError(
                f"{name} in {source.name} is of type {kind}, but norms, biases and rotary factors"
                f" must be of {', '.join(PLAIN)}"
            )


def _dense(rows: _GgufRows, dtype: "np.dtype[Any]") -> Array:
    """Return a tensor's weights one by one."""
    if rows.type in PLAIN:
        return rows.values.astype(dtype, copy=False)
    return _packed(rows, dtype).dense(dtype)


def _packed(rows: _GgufRows, dtype: "np.dtype[Any]") -> Weights:
    if rows.type == "F16":
        return Weights(FLOAT16, rows.values)
    return (
        of_type(rows.values, dtype)
        if rows.type in PLAIN
        else Weights(KINDS[rows.type], rows.values)
    )


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if layer := _IN_LAYER.fullmatch(stem):
        return f"blk.{layer[1]}.{_LAYER_NAMES.get(layer[2], layer[2])}.{kind}"
    return f"{_NAMES.get(stem, stem)}.{kind}"
