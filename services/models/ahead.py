"""Loads a model on a thread of its own, while the rest of a program is still imported.

Weights are packed without Python's lock, so that the two take turns at nothing but a few lines.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from slipstream.models.causal import CausalModel
from slipstream.models.dtypes import AUTO
from slipstream.models.invariance import Numerics
from slipstream.models.loading import LoadedModel, load_model
from slipstream.models.native.source import WeightSource


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which model is loaded, and how it is run; `threads` None leaves their number as it is."""

    name: str
    dtype: str = AUTO
    device: str = "cpu"
    numerics: Numerics = "invariant"
    threads: int | None = None


_AHEAD: "dict[LoadOptions, Future[LoadedModel]]" = {}


def load_ahead(options: LoadOptions) -> None:
    """Begin to load a model. What goes wrong is raised where the model is taken."""
    thread = ThreadPoolExecutor(1, "load")
    _AHEAD[options] = thread.submit(_load, options)
    thread.shutdown(wait=False)


def take(options: LoadOptions) -> LoadedModel:
    """Return the model that was loaded ahead with these options, once, or else load it now. Raises
    what `load_model` raises."""
    ahead = _AHEAD.pop(options, None)
    return _load(options) if ahead is None else ahead.result()


def _load(options: LoadOptions) -> LoadedModel:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    loaded = load_model(options.name, dtype=options.dtype, device=options.device)
    if not isinstance(loaded.model, WeightSource):
        return loaded
    return replace(loaded, forward=CausalModel(loaded.model, numerics=options.numerics))
