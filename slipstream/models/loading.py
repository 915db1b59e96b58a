"""Loading of a model by its name, and the choice of what computes it: dtype, device and decoder are
decided here only."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from slipstream.core.errors import ModelError
from slipstream.models.causal import CausalModel
from slipstream.models.decoder import check_numerics
from slipstream.models.dtypes import AUTO, CPU, choose_dtype
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

Engine = Literal["native", "torch", "cuda"]
"""Kind of decoder: native code, torch, or torch in forwards of fixed shape."""


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
        _LOG.info("%s is loaded by transformers: %s", path.name, reason)
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

    return outline_of(model, num_ranks)


def causal_model(
    model: "WeightSource | PreTrainedModel",
    *,
    numerics: str = "auto",
    engine: Engine | None = None,
    split: "TensorParallelGroup | None" = None,
    path: Path | None = None,
    hidden_layers: Sequence[int] = (),
) -> CausalModel:
    """Return a model with the fastest decoder that there is, or with that of an `engine`; it takes
    the model over, whose modules are swapped in place. One with the weights in `path` is compared
    with transformers' forward once. Its caches keep the hidden states that `hidden_layers` take in.

    All ranks of a `split` model do so together, and rank 0, which alone has workers, drives them.
    Raises `ModelError` for a model, and `InvalidRequest` for numerics or layers, that can't be
    computed.
    """
    check_numerics(numerics)
    ranks = None if split is None else split.ranks
    sizes = sizes_of(model, 1 if ranks is None else ranks.size)
    layout = sizes.layout.keeping(hidden_layers, sizes.hidden_size)
    sizes = replace(sizes, layout=layout)
    with reading(sizes.name):
        computed = f"{sizes.weights_type} {numerics} {engine} {ranks and ranks.size}"
        mark = None if ranks and ranks.rank else mark_of(model, path, computed)
        known_states = ReferenceCheck(model, sizes.vocab_size, mark, ranks)
        found = _native(model, sizes, engine) if split is None else None
        if found is None:
            from slipstream.models.torch.choice import torch_decoder

            assert not isinstance(model, WeightSource), "native code computes what was read for it"
            assert engine != "native", "which was refused"
            own = torch_decoder(model, sizes, numerics=numerics, engine=engine, split=split)
            found = CausalModel(own, sizes)
    known_states.check(found.sample, sizes)
    if split is not None:
        from slipstream.models.torch.choice import driven

        found.decoder = driven(found.decoder, split)
    return found


def _native(
    model: "WeightSource | PreTrainedModel", sizes: ModelSizes, engine: Engine | None
) -> CausalModel | None:
    if engine not in (None, "native"):
        return None
    if isinstance(model, WeightSource):
        return CausalModel(NativeDecoder(model, sizes.layout), sizes)
    from slipstream.models.native.in_memory import InMemory

    try:
        source = InMemory(model)
        sizes = replace(sizes, context_length=source.architecture.context_length)
        return CausalModel(NativeDecoder(source, sizes.layout), sizes)
    except NotNative as reason:
        if engine is not None:
            raise ModelError(f"the engine is {engine}, but {reason}") from None
        if sizes.layout.device == CPU:
            _LOG.warning(
                "torch computes %s: %s. It is slower, near-ties may differ, and it decodes plainly"
                " unless a request asks for speculation",
                sizes.name,
                reason,
            )
        return None
