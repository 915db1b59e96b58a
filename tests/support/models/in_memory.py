"""Transformers models in memory, computed by native code where it can."""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from slipstream.models.causal import CausalModel
from slipstream.models.dtypes import BFLOAT16, FLOAT32
from slipstream.models.format.rope import Rotary
from slipstream.models.loading import causal_model as loaded_model
from slipstream.models.native.checkpoint import Checkpoint
from slipstream.models.native.library import NotNative, kernels
from slipstream.models.native.source import WeightSource
from slipstream.models.torch.arrays import as_array, numpy_dtype


class _Saved(Checkpoint):
    """A model's files, which are there as long as this is; frequencies are the model's own."""

    def __init__(self, model: Any) -> None:
        self._model, dtype = model, numpy_dtype(model.dtype)
        if model.device.type != "cpu" or dtype not in (FLOAT32, BFLOAT16):
            raise NotNative(f"{dtype} on {model.device} has no native kernels")
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        model.save_pretrained(folder)
        super().__init__(folder, dtype)
        self.name, own = type(model).__name__, model.base_model.rotary_emb
        kinds = [""] if len(self.rotaries) == 1 else ["full_attention_", "sliding_attention_"]
        there = [kind for kind in kinds if hasattr(own, f"{kind}inv_freq")]
        self.rotaries = tuple(_rotary(own, kind if kind in there else there[0]) for kind in kinds)

    def reference(self, **_: Any) -> Any:
        return self._model


def _rotary(module: Any, kind: str) -> Rotary:
    frequencies = getattr(module, f"{kind}inv_freq").float()
    return Rotary(as_array(frequencies), getattr(module, f"{kind}attention_scaling"))


def causal_model(model: Any, *, engine: Any = None, **options: Any) -> CausalModel:
    """See `loading.causal_model`; `engine` native or None computes a model natively."""
    if isinstance(model, WeightSource) or engine not in (None, "native"):
        return loaded_model(model, **options)
    try:
        kernels()
        source = _Saved(model)
    except NotNative:
        source = model
    return loaded_model(source, **options)
