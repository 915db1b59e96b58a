"""A GGUF file in the terms of transformers' checkpoints: configuration, names, order of rows.

Knows the families that native code serves; others are left to transformers' own reader.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream.core.errors import WeightsError
from slipstream.models.store.gguf_file import GgufFile, GgufTensor

FAMILIES = ("llama", "qwen2", "qwen3")
_ROTARY_IN_PAIRS = "llama"
"""The family whose queries and keys lie in pairs of rows that are rotated together."""
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
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
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types that are no blocks."""


class GgufRows(NamedTuple):
    """A tensor's rows: in a plain type as they are, else the bytes of their blocks."""

    type: str
    values: Tensor


class GgufCheckpoint:
    """Configuration and weights of one file."""

    def __init__(self, path: Path) -> None:
        """Raises `WeightsError` for a broken file."""
        self._file = GgufFile(path)
        self.path = path
        self.fields: Mapping[str, Any] = self._file.fields
        self.family = str(self.fields.get("general.architecture", ""))

    @cached_property
    def config(self) -> dict[str, Any]:
        """What config.json has for such a model. Raises `WeightsError` for a field that is
        missing or no number."""
        heads = self._number("attention.head_count")
        hidden = self._number("embedding_length")
        tied = "output.weight" not in self._file.tensors
        found = {
            "model_type": self.family,
            "hidden_size": hidden,
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._number("attention.head_count_kv", heads),
            "head_dim": self._number("attention.key_length", hidden // max(heads, 1)),
            "max_position_embeddings": self._number("context_length"),
            "rms_norm_eps": self._field("attention.layer_norm_rms_epsilon", float),
            "vocab_size": self._tensor("model.embed_tokens.weight").shape[0],
            "tie_word_embeddings": tied,
            "attention_bias": "blk.0.attn_q.bias" in self._file.tensors,
            "hidden_act": "silu",
            "rope_parameters": self._rope(),
        }
        for role in ("bos", "eos", "pad"):
            number = self.fields.get(f"tokenizer.ggml.{role}_token_id")
            if isinstance(number, int):
                found[f"{role}_token_id"] = number
        return found

    @property
    def rope_factors(self) -> Tensor | None:
        """What each rotary frequency [head_dim / 2] is divided by; None for nothing."""
        tensor = self._file.tensors.get(_ROPE_FACTORS)
        return None if tensor is None else self._rows(_ROPE_FACTORS, tensor).values

    def has(self, name: str) -> bool:
        """Whether there is a tensor of a name, which is one of transformers'."""
        return _gguf_name(name) in self._file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, by transformers' name. Raises `WeightsError` where there is none."""
        return self._tensor(name).shape

    def type_of(self, name: str) -> str:
        """A tensor's type, likewise."""
        return self._tensor(name).type

    def matrix_types(self) -> list[str]:
        """The types of all matrices, that of the most weights first."""
        sizes: Counter[str] = Counter()
        for tensor in self._file.tensors.values():
            if len(tensor.shape) > 1:
                sizes[tensor.type] += math.prod(tensor.shape)
        return [name for name, _ in sizes.most_common()]

    def rows(self, name: str) -> GgufRows:
        """A tensor by transformers' name, with rows in transformers' order. Raises `WeightsError`
        where there is none."""
        rows = self._rows(_gguf_name(name), self._tensor(name))
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        which = heads.get(name.split(".")[-2])
        if self.family != _ROTARY_IN_PAIRS or which is None:
            return rows
        pairs = rows.values.unflatten(0, (self.config[which], -1, 2))
        return GgufRows(rows.type, pairs.transpose(1, 2).flatten(0, 2).contiguous())

    def _rows(self, name: str, tensor: GgufTensor) -> GgufRows:
        if len(tensor.shape) > 2:
            raise WeightsError(f"{name} in {self.path.name} has {len(tensor.shape)} dimensions")
        if not tensor.num_bytes:
            raise WeightsError(f"{name} in {self.path.name} is empty")
        values = torch.frombuffer(self._file.view(tensor), dtype=torch.uint8)
        if dtype := PLAIN.get(tensor.type):
            return GgufRows(tensor.type, values.view(dtype).view(tensor.shape))
        return GgufRows(tensor.type, values.view(*tensor.shape[:-1], -1))

    def _tensor(self, name: str) -> GgufTensor:
        found = self._file.tensors.get(_gguf_name(name))
        if found is None:
            raise WeightsError(f"the weights in {self.path.name} lack {_gguf_name(name)}")
        return found

    def _rope(self) -> dict[str, Any]:
        rope: dict[str, Any] = {
            "rope_type": "default",
            "rope_theta": self._field("rope.freq_base", float, 10000.0),
        }
        kind = self.fields.get(f"{self.family}.rope.scaling.type", "none")
        if kind not in _ROPE_SCALING:
            raise WeightsError(f"{self.path.name} has rotary scaling of the kind {kind!r}")
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
            raise WeightsError(f"{self.path.name} says that its {name} is {value}")
        return value

    def _field(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.fields.get(f"{self.family}.{name}", default)
        if not isinstance(value, kind):
            raise WeightsError(f"{self.path.name} says that its {name} is {value!r}")
        return value


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if layer := _IN_LAYER.fullmatch(stem):
        return f"blk.{layer[1]}.{_LAYER_NAMES.get(layer[2], layer[2])}.{kind}"
    return f"{_NAMES.get(stem, stem)}.{kind}"
