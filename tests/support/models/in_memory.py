"""Weights of a transformers model in memory, for native code: tests need no files then."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slipstream.models.causal import CausalModel
from slipstream.models.dtypes import Array
from slipstream.models.format.architecture import parse
from slipstream.models.format.rope import Rotary
from slipstream.models.loading import causal_model as loaded_model
from slipstream.models.native.library import NotNative, kernels
from slipstream.models.native.source import WeightSource
from slipstream.models.native.weights import Weights, of_type
from slipstream.models.torch.arrays import as_array, numpy_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class InMemory(WeightSource):
    """A transformers model; its layers are empty once they have been released."""

    def __init__(self, model: "PreTrainedModel") -> None:
        """Raise `NotNative` for a model that is not a decoder of the usual form."""
        self._model: Any = model
        if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.bfloat16):
            raise NotNative(f"{model.dtype} on {model.device.type} has no native kernels")
        arch = parse(model.config.get_text_config().to_dict())
        biases = (name for name, _ in arch.linears() if self.has(f"model.layers.0.{name}.bias"))
        scale = getattr(self._model.get_input_embeddings(), "embed_scale", arch.embedding_scale)
        self.architecture = replace(arch, biases=frozenset(biases), embedding_scale=float(scale))
        self.name, self.dtype = type(model).__name__, numpy_dtype(model.dtype)
        own: Any = self._model.base_model.rotary_emb
        kinds = [""] if len(arch.ropes) == 1 else ["full_attention_", "sliding_attention_"]
        there = [kind for kind in kinds if hasattr(own, f"{kind}inv_freq")]
        self.rotaries = tuple(_rotary(own, kind if kind in there else there[0]) for kind in kinds)
        ends = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        self.is_tied = ends[0].weight is ends[1].weight

    def shape(self, name: str) -> tuple[int, ...] | None:
        found = self._find(name)
        return None if found is None else tuple(found.shape)

    def matrix(self, name: str) -> Weights:
        return of_type(self.dense(name), self.dtype)

    def dense(self, name: str) -> Array:
        weight = self._find(name)
        assert weight is not None
        return as_array(weight)

    def reference(self) -> "PreTrainedModel":
        model: PreTrainedModel = self._model
        return model

    def release(self, layer: int) -> None:
        self._model.base_model.layers[layer] = nn.Identity()

    def _find(self, name: str) -> Tensor | None:
        try:
            weight: Tensor | None = self._model.get_parameter(name)
        except AttributeError:
            return None
        return weight


def causal_model(model: Any, *, engine: Any = None, **options: Any) -> CausalModel:
    """A transformers model, by native code where that can compute it; `engine` is as in
    `loading.causal_model`, or native."""
    if engine in (None, "native") and not isinstance(model, WeightSource):
        try:
            kernels()
            return loaded_model(InMemory(model), **options)
        except NotNative:
            assert engine is None
    return loaded_model(model, engine=engine, **options)


def _rotary(module: Any, kind: str) -> Rotary:
    frequencies: Tensor = getattr(module, f"{kind}inv_freq")
    return Rotary(as_array(frequencies.float()), getattr(module, f"{kind}attention_scaling"))
