"""Loading of a model by its name, and the choice of what computes it: dtype, device and decoder are
decided here only."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.models.causal import CausalModel
from slipstream.models.decoder import check_numerics
from slipstream.models.dtypes import AUTO, CPU, FP8, choose_dtype
from slipstream.models.format.architecture import ModelSizes
from slipstream.models.format.folder import reading
from slipstream.models.format.resolve import resolve
from slipstream.models.format.tokenizer import find_tokenizer, fitted
from slipstream.models.loaded import LoadedModel, find_source, find_sources, made_of, parse_device
from slipstream.models.machine import require_torch
from slipstream.models.native.library import NotNative, has_kernels
from slipstream.models.native.model import NativeDecoder
from slipstream.models.native.source import WeightSource
from slipstream.models.reference import ReferenceCheck, mark_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slipstream.models.torch.tensor_parallel import TensorParallelGroup

_LOG = logging.getLogger("slipstream.models")


def load_model(
    name: str, *, dtype: str = AUTO, device: str = CPU, num_ranks: int = 1
) -> LoadedModel:
    """Load a model to serve, by alias, path or hub id: a source of weights for native code where
    that computes it, without transformers; else as `load_target_parts` does, which lists errors."""
    choose_dtype(dtype, parse_device(device), native=has_kernels())
    path = resolve(name)
    folder, gguf = find_sources(path)
    try:
        source = find_source(folder, gguf, dtype, device, num_ranks=num_ranks)
    except NotNative as reason:
        require_torch(f"{path.name} ({reason})")
        if device == CPU:
            _LOG.warning(
                "torch computes %s: %s. It is slower, near-ties may differ, and it decodes plainly"
                " unless a request asks for speculation",
                path.name,
                reason,
            )
        from slipstream.models.torch.loading import load_target_parts

        return load_target_parts(name, dtype=dtype, device=device, num_ranks=num_ranks)
    with reading(path):
        arch = source.architecture
        tokenizer = fitted(find_tokenizer(folder, gguf), path, arch.vocab_size)
        return made_of(name, path, source, tokenizer, arch.eos_ids)


def sizes_of(model: "WeightSource | PreTrainedModel", num_ranks: int = 1) -> ModelSizes:
    """Return the sizes of a model. Raises `ModelError` for one that this cache can't serve."""
    if isinstance(model, WeightSource):
        return model.outline()
    from slipstream.models.torch.transformers_model import outline_of

    with reading(type(model).__name__):
        return outline_of(model, num_ranks)


def causal_model(
    model: "WeightSource | PreTrainedModel",
    *,
    numerics: str = "auto",
    split: "TensorParallelGroup | None" = None,
    path: Path | None = None,
    hidden_layers: Sequence[int] = (),
) -> CausalModel:
    """Return a model with a decoder: native code over a source of weights, torch over a model of
    transformers, in captured forwards on a GPU. It takes the model over, whose modules are swapped
    in place. One with the weights in `path` is checked once. Its caches
    keep the hidden states that `hidden_layers` take in.

    All ranks of a `split` model do so together, and rank 0, which alone has workers, drives them.
    Raises `ModelError` for a model, and `InvalidRequest` for numerics or layers, that can't be
    computed.
    """
    check_numerics(numerics)
    ranks = None if split is None else split.ranks
    sizes = sizes_of(model, 1 if ranks is None else ranks.size)
    layout = sizes.layout.keeping(hidden_layers, sizes.hidden_size)
    is_scaled = split is not None and split.is_scaled  # which its parts are not yet
    sizes = replace(sizes, layout=layout, weights_type=FP8 if is_scaled else sizes.weights_type)
    with reading(sizes.name):
        computed = f"{sizes.weights_type} {numerics} {ranks and ranks.size}"
        mark = None if ranks and ranks.rank else mark_of(model, path, computed)
        known_states = ReferenceCheck(model, sizes.vocab_size, mark, ranks)
        if isinstance(model, WeightSource):
            found = CausalModel(NativeDecoder(model, sizes.layout), sizes)
        else:
            from slipstream.models.torch.choice import torch_decoder

            own = torch_decoder(model, sizes, numerics=numerics, split=split)
            found = CausalModel(own, sizes)
    known_states.check(found.sample, sizes)
    if split is not None and split.workers is not None:
        from slipstream.models.torch.tensor_parallel import SplitDecoder

        found.decoder = SplitDecoder(found.decoder, split.ranks, split.workers)
    return found
