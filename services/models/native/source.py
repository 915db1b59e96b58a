"""A decoder's weights by the names of checkpoints, wherever they are, as native code takes them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import CPU, Array
from slipstream.models.kv.pool import KvLayout
from slipstream.models.native.weights import (
    BlockWeights,
    Weights,
    as_float32,
    plain,
)
from slipstream.models.target.architecture import EMBEDDING, HEAD, NORM, Architecture, ModelSizes
from slipstream.models.target.rope import Rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WeightSource(ABC):
    """The weights of one decoder.

    `name` is what messages call it, `dtype` that of keys, values and dense tensors; `rotary` are
    the frequencies of positions; `is_tied`: the embedding is the head as well.
    """

    name: str
    architecture: Architecture
    dtype: np.dtype[Any]
    rotary: Rotary
    is_tied: bool

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor, outputs before inputs; None where there is none."""

    @abstractmethod
    def matrix(self, name: str) -> Weights:
        """Return a matrix in the kind that native code multiplies. Raises `NotNative`."""

    @abstractmethod
    def dense(self, name: str) -> Array:
        """Return a tensor in `dtype`, whatever it is kept in; in place where that is possible."""

    @abstractmethod
    def reference(self) -> "PreTrainedModel":
        """Return a transformers model of these weights, to compare the forward with."""

    def identity(self) -> str | None:
        """Return the identity of the weights, by their files; None in memory."""
        return None

    def weights_type(self) -> str:
        """Return the name of the weights' element type, as results show it."""
        return self.dtype.name

    def embedding(self) -> Weights:
        """Return the embedding [vocab, d]."""
        return plain(self.dense(EMBEDDING))

    def head_rows(self, ids: Array) -> Array:
        """Return rows [n, d] of the head for the tokens `ids` [n], float32."""
        return as_float32(self.dense(EMBEDDING if self.is_tied else HEAD)[ids])

    def release(self, layer: int) -> None:  # noqa: B027
        """Give the memory back that a layer's tensors took here; they are not read again soon."""

    def vector(self, name: str) -> Array:
        """Return a norm or a bias, rounded to `dtype`, as float32."""
        return as_float32(self.dense(name))

    def outline(self) -> ModelSizes:
        """Return the sizes of the model, as everything that serves it needs them."""
        at = self.architecture
        return ModelSizes(
            self.name,
            at.hidden,
            at.mlp,
            at.vocab_size,
            at.context_length,
            KvLayout(at.num_layers, at.num_kv_heads, at.head_dim, self.dtype, CPU),
            at.vocab_size,
            self.weights_type(),
        )

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of a name."""
        return self.shape(name) is not None


def check_tensors(source: WeightSource, *, has_layers: bool = True) -> None:
    """Raise `WeightsError` unless all tensors of the architecture are there, and of its shapes:
    embedding and head alone where the layers are not needed."""
    at = source.architecture
    ends = dict.fromkeys((EMBEDDING, HEAD), (at.vocab_size, at.hidden))
    expected = ends | dict(at.tensors() if has_layers else ())
    if source.is_tied:
        del expected[HEAD]
    shapes = {name: source.shape(name) for name in expected}
    if missing := sorted(name for name, shape in shapes.items() if shape is None):
        raise WeightsError(
            f"the weights in {source.name} lack {missing[0]} ({len(missing)} in all)"
        )
    for name, shape in shapes.items():
        if shape != expected[name]:
            raise WeightsError(
                f"the weights in {source.name} can't be loaded ({name} has the shape"
                f" {list(shape or ())}, but must have {list(expected[name])})"
            )


def head(source: WeightSource) -> Weights:
    """Return the head [vocab, d]."""
    return source.matrix(EMBEDDING if source.is_tied else HEAD)


def last_norm(source: WeightSource) -> Array:
    """Return the weight of the norm before the head, float32."""
    return source.vector(NORM)


def layer(source: WeightSource, index: int) -> Sequence[BlockWeights]:
    """Return the blocks of a layer: its attention and its MLP."""
    name = f"model.layers.{index}"
    return _attention(source, name), _mlp(source, name)


def _attention(source: WeightSource, layer: str) -> BlockWeights:
    own = f"{layer}.self_attn"
    norms = (f"{own}.q_norm.weight", f"{own}.k_norm.weight")
    query_norm, key_norm = (source.vector(at) if source.has(at) else None for at in norms)
    return BlockWeights(
        source.vector(f"{layer}.input_layernorm.weight"),
        [_linear(source, f"{own}.{part}_proj") for part in "qkv"],
        _linear(source, f"{own}.o_proj"),
        query_norm,
        key_norm,
    )


def _mlp(source: WeightSource, layer: str) -> BlockWeights:
    return BlockWeights(
        source.vector(f"{layer}.post_attention_layernorm.weight"),
        [_linear(source, f"{layer}.mlp.{part}_proj") for part in ("gate", "up")],
        _linear(source, f"{layer}.mlp.down_proj"),
    )


def _linear(source: WeightSource, name: str) -> Weights:
    """Return a matrix with its bias, if it has one."""
    weights, bias = source.matrix(f"{name}.weight"), f"{name}.bias"
    return replace(weights, bias=source.vector(bias)) if source.has(bias) else weights
