"""Weights of a GGUF file: in the file's own blocks, as the native forward takes them, or dense.

The file is read in the terms of transformers' checkpoints: configuration, names, order of rows.
Every tensor is read, or the file is refused.
"""

import math
import re
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import CPU, DTYPES, FLOAT32, Array
from slipstream.models.format.architecture import EMBEDDING, HEAD, Architecture, parse
from slipstream.models.format.digests import weights_digest
from slipstream.models.format.folder import reading
from slipstream.models.format.gguf_config import FAMILIES, LONG_FACTORS, read_config
from slipstream.models.format.gguf_file import GgufFile, GgufTensor
from slipstream.models.format.rope import Rotary
from slipstream.models.native.library import PATH
from slipstream.models.native.source import WeightSource, check_tensors
from slipstream.models.native.weights import FLOAT16, KINDS, Weights, as_float32, of_type, plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_ROPE_FACTORS = "rope_freqs.weight"
_NORM = "norm.weight"
PLAIN = {"F32": DTYPES["float32"], "F16": DTYPES["float16"], "BF16": DTYPES["bfloat16"]}


class _GgufRows(NamedTuple):
    """A tensor's rows: in a plain type as they are, else the bytes of their blocks."""

    type: str
    values: Array


class GgufSource(WeightSource):
    """The weights of a GGUF file, by transformers' names."""

    def __init__(self, path: Path, dtype: np.dtype[Any], *, is_dense: bool = False) -> None:
        """Check that all is there, and nothing else; `is_dense` gives matrices in `dtype`, for
        which no native code is needed.

        Raises `WeightsError` for a file that is broken or has what can't be read, `NotNative` for
        one that native code can't compute.
        """
        self._file = GgufFile(path)
        self.path, self.name, self.dtype = path, path.name, dtype
        self._is_dense = is_dense
        self.config = read_config(self._file)
        self._family = FAMILIES[self._file.fields["general.architecture"]]
        try:
            self.architecture = self._with_biases(parse(self.config))
        except WeightsError as error:
            raise WeightsError(str(error).replace("config.json", self.name, 1)) from None
        self._zeros = self._missing_biases()
        self.is_tied = self.architecture.is_tied
        check_tensors(self)
        self._check_nothing_left()
        check_types(self)
        self.rotaries = tuple(
            Rotary(own.inv_freq / self._rope_factors, own.attention_scaling)
            for own in self.architecture.rotaries()
        )

    def shape(self, name: str) -> tuple[int, ...] | None:
        if name in self._zeros:
            return self._zeros[name]
        found = self._file.tensors.get(self._stored_name(name))
        return None if found is None else found.shape

    def title(self, name: str) -> str:
        """See `WeightSource.title`; the name in the file, and the type if it is there."""
        stored = self._stored_name(name)
        return f"{stored} of type {self.type_of(name)}" if self.has(name) else stored

    def type_of(self, name: str) -> str:
        """Return a tensor's type. Raises `WeightsError` where there is none."""
        return "F32" if name in self._zeros else self._tensor(name).type

    def matrix(self, name: str) -> Weights:
        if self._is_dense:
            return of_type(self.dense(name), self.dtype)
        return _packed(self._rows(name), self.dtype)

    def vector(self, name: str) -> Array:
        """See `WeightSource.vector`; norms and biases stay as exact as the file has them."""
        values = as_float32(self._rows(name).values)
        return values - 1 if self._has_one(name) else values

    def dense(self, name: str) -> Array:
        if name == EMBEDDING:
            return self._table
        if self._has_one(name):
            return self.vector(name).astype(self.dtype)
        return _dense(self._rows(name), self.dtype)

    def embedding(self) -> Weights:
        rows = self._rows(EMBEDDING)
        return plain(rows.values) if rows.type == "F32" else _packed(rows, self.dtype)

    def head_rows(self, ids: Array) -> Array:
        rows = self._rows(EMBEDDING if self.is_tied else HEAD)
        return _dense(_GgufRows(rows.type, rows.values[ids]), FLOAT32)

    def reference(self, *, is_lent: bool = True, device: str = CPU) -> "PreTrainedModel":
        """See `WeightSource.reference`; with tensors of its own where they are not lent."""
        from transformers import AutoConfig

        from slipstream.models.torch.transformers_model import model_of

        with reading(self.name):
            config = AutoConfig.for_model(**self.config)
        model = model_of(self, config, is_lent=is_lent, device=device)
        if _ROPE_FACTORS in self._file.tensors:
            rotary = model.base_model.rotary_emb
            rotary.inv_freq /= rotary.inv_freq.new_tensor(self._rope_factors)
        found: PreTrainedModel = model
        return found

    def release(self, layer: int) -> None:
        self._file.release()

    def identity(self) -> str:
        return weights_digest(self.path)

    def weights_type(self) -> str:
        """See `WeightSource.weights_type`; all types, that of the most weights first."""
        if self._is_dense:
            return super().weights_type()
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
    def _rope_factors(self) -> Array:
        """Divisors of the rotary frequencies [head_dim / 2], or one of all."""
        tensor = self._file.tensors.get(_ROPE_FACTORS)
        if tensor is None:
            return np.ones(1, np.float32)
        half = self.architecture.head_dim // 2
        if (tensor.type, tensor.shape) != ("F32", (half,)):
            raise WeightsError(
                f"{_ROPE_FACTORS} in {self.name} is {tensor.type} {list(tensor.shape)}, but must be"
                f" F32 [{half}]"
            )
        return self._stored(_ROPE_FACTORS, tensor).values

    def _rows(self, name: str) -> _GgufRows:
        """Return a tensor with rows in transformers' order."""
        if name in self._zeros:
            return _GgufRows("F32", np.zeros(self._zeros[name], np.float32))
        rows = self._stored(self._stored_name(name), self._tensor(name))
        heads = {"q_proj": self.architecture.num_heads, "k_proj": self.architecture.num_kv_heads}
        count = heads.get(name.split(".")[-2])
        if not self._family.in_pairs or count is None:
            return rows
        shape = rows.values.shape
        pairs = rows.values.reshape(count, -1, 2, *shape[1:])
        return _GgufRows(rows.type, np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape))

    def _with_biases(self, arch: Architecture) -> Architecture:
        """Return an architecture with the biases that any layer has here."""
        there = {
            name
            for name, _ in arch.linears()
            for layer in range(arch.num_layers)
            if self._stored_name(f"model.layers.{layer}.{name}.bias") in self._file.tensors
        }
        return replace(arch, biases=frozenset(there.union(arch.form.biases)))

    def _missing_biases(self) -> dict[str, tuple[int, ...]]:
        """Return the biases, by name with their shapes, that other layers alone have."""
        own, always = self.architecture, self.architecture.form.biases
        return {
            f"model.layers.{layer}.{name}.bias": shape[:1]
            for layer in range(own.num_layers)
            for name, shape in own.linears()
            if name in own.biases.difference(always)
            and self._stored_name(f"model.layers.{layer}.{name}.bias") not in self._file.tensors
        }

    def _has_one(self, name: str) -> bool:
        """Return whether the file has a tensor with the 1 that checkpoints leave to the model."""
        return name.endswith(_NORM) and self._family.adds_one

    def _stored(self, name: str, tensor: GgufTensor) -> _GgufRows:
        if len(tensor.shape) > 2:
            raise WeightsError(f"{name} in {self.name} has {len(tensor.shape)} dimensions")
        if not tensor.num_bytes:
            raise WeightsError(f"{name} in {self.name} is empty")
        values = np.frombuffer(self._file.view(name), np.uint8)
        if dtype := PLAIN.get(tensor.type):
            return _GgufRows(tensor.type, values.view(dtype).reshape(tensor.shape))
        return _GgufRows(tensor.type, values.reshape(*tensor.shape[:-1], -1))

    def _tensor(self, name: str) -> GgufTensor:
        stored = self._stored_name(name)
        found = self._file.tensors.get(stored)
        if found is None:
            raise WeightsError(f"the weights in {self.name} lack {stored}")
        return found

    def _stored_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if layer := _IN_LAYER.fullmatch(stem):
            return f"blk.{layer[1]}.{self._family.layer_tensors.get(layer[2], layer[2])}.{kind}"
        return f"{_ENDS.get(stem, stem)}.{kind}"

    def _check_nothing_left(self) -> None:
        arch = self.architecture
        known = {HEAD, *(name for name, _ in arch.tensors())}
        read = {_ROPE_FACTORS, *map(self._stored_name, known)}
        if any(rope["rope_type"] == "longrope" for rope in arch.ropes):
            read |= {f"{name}.weight" for name in LONG_FACTORS}
        if left := sorted(self._file.tensors.keys() - read):
            raise WeightsError(
                f"{self.name} has a tensor {left[0]}, which is not supported for"
                f" {self._file.fields['general.architecture']} ({len(left)} such tensors)"
            )


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
    if PATH.is_file():
        return _packed(rows, dtype).dense(dtype)
    from gguf import GGMLQuantizationType, quants

    return quants.dequantize(rows.values, GGMLQuantizationType[rows.type]).astype(dtype)


def _packed(rows: _GgufRows, dtype: "np.dtype[Any]") -> Weights:
    if rows.type == "F16":
        return Weights(FLOAT16, rows.values)
    return (
        of_type(rows.values, dtype)
        if rows.type in PLAIN
        else Weights(KINDS[rows.type], rows.values)
    )
