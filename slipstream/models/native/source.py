"""A decoder's weights by the names of checkpoints, wherever they are, as native code takes them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import CPU, Array
from slipstream.models.format.architecture import (
    BLOCK_NORMS,
    EMBEDDING,
    HEAD,
    Architecture,
    ModelSizes,
)
from slipstream.models.format.rope import Rotary
from slipstream.models.kv.pool import KvLayout
from slipstream.models.native.weights import BlockWeights, Weights, as_float32, plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WeightSource(ABC):
    """The weights of one decoder.

    `name` is what messages call it, `dtype` that of keys, values and dense tensors; `rotaries` are
    the frequencies of positions; `is_tied`: the embedding is the head as well.
    """

    name: str
    architecture: Architecture
    dtype: np.dtype[Any]
    rotaries: tuple[Rotary, ...]
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

    def title(self, name: str) -> str:
        """Return what messages call a tensor."""
        return name

    def outline(self) -> ModelSizes:
        """Return the sizes of the model, as everything that serves it needs them."""
        arch = self.architecture
        return ModelSizes(
            self.name,
            arch.hidden,
            arch.mlp,
            arch.vocab_size,
            arch.context_length,
            KvLayout(arch.num_layers, arch.num_kv_heads, arch.head_dim, self.dtype, CPU),
            arch.vocab_size,
            self.weights_type(),
        )

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of a name."""
        return self.shape(name) is not None


def check_tensors(source: WeightSource, *, has_layers: bool = True) -> None:
    """Raise `WeightsError` unless all tensors of the architecture are there, and of its shapes:
    embedding and head alone where the layers are not needed."""
    arch = source.architecture
    ends = dict.fromkeys((EMBEDDING, HEAD), (arch.vocab_size, arch.hidden))
    expected = ends | dict(arch.tensors() if has_layers else ())
    if source.is_tied:
        del expected[HEAD]
    shapes = {name: source.shape(name) for name in expected}
    if missing := sorted(name for name, shape in shapes.items() if shape is None):
        raise WeightsError(
            f"the weights in {source.name} lack {source.title(missing[0])} ({len(missing)} in all)"
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


def layer(source: WeightSource, index: int) -> Sequence[BlockWeights]:
    """Return the blocks of a layer: its attention and its MLP."""
    name = f"model.layers.{index}"
    return _attention(source, name), _mlp(source, name)


def _attention(source: WeightSource, layer: str) -> BlockWeights:
    own, form = f"{layer}.self_attn", source.architecture.form
    norms = (f"{own}.q_norm.weight", f"{own}.k_norm.weight")
    has_norms = form.head_norms != "none"
    query_norm, key_norm = (norm(source, name) if has_norms else None for name in norms)
    before, after = _block_norms(source, layer, 0)
    return BlockWeights(
        before,
        [_linear(source, f"{own}.{part}_proj") for part in (("qkv",) if form.is_fused else "qkv")],
        _linear(source, f"{own}.o_proj"),
        query_norm,
        key_norm,
        after,
    )


def _mlp(source: WeightSource, layer: str) -> BlockWeights:
    if source.architecture.form.is_fused:
        into = _halves(_linear(source, f"{layer}.mlp.gate_up_proj"))
    else:
        into = [_linear(source, f"{layer}.mlp.{part}_proj") for part in ("gate", "up")]
    before, after = _block_norms(source, layer, 1)
    return BlockWeights(before, into, _linear(source, f"{layer}.mlp.down_proj"), norm_after=after)


def _block_norms(source: WeightSource, layer: str, block: int) -> tuple[Array | None, Array | None]:
    """The norms before and after a block."""
    names = BLOCK_NORMS[source.architecture.form.norms][block]
    before, after = (
        None if name is None else norm(source, f"{layer}.{name}.weight") for name in names
    )
    return before, after


def norm(source: WeightSource, name: str) -> Array:
    """Return the factors of a norm's elements, float32."""
    return source.vector(name) + np.float32(source.architecture.form.has_unit_offset)


def _linear(source: WeightSource, name: str) -> Weights:
    """Return a matrix with its bias, if it has one."""
    weights, bias = source.matrix(f"{name}.weight"), f"{name}.bias"
    return replace(weights, bias=source.vector(bias)) if source.has(bias) else weights


def _halves(both: Weights) -> Sequence[Weights]:
    """Return the two matrices that are one in a file."""
    biases = (None, None) if both.bias is None else np.split(both.bias, 2)
    matrices = np.split(both.matrix, 2)
    return [Weights(both.kind, *parts) for parts in zip(matrices, biases, strict=True)]
