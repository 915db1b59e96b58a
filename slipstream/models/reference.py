"""Comparison of our forward with transformers' own, on a few tokens, when a model is loaded.

Weights in files are compared once for each machine: a later start trusts the result while the
files, what computes them and the versions stay the same. The reference of native code has the
weights of a layer in memory only while the layer runs.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import CPU, FP8, Array
from slipstream.models.format.architecture import ModelSizes
from slipstream.models.format.digests import bytes_digest, file_digest, weights_digest
from slipstream.models.format.folder import brief
from slipstream.models.machine import this_machine
from slipstream.models.native import library
from slipstream.models.native.source import WeightSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slipstream.models.torch.ranks import Ranks


SAMPLE_TOKENS = 24
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.08, "float16": 0.02, FP8: 0.3}
_AS_TRANSFORMERS = "as transformers"


class ReferenceCheck:
    """Comparison of our forward of a model with transformers' own."""

    def __init__(
        self,
        model: "WeightSource | PreTrainedModel",
        vocab_size: int,
        mark: str | None,
        ranks: "Ranks | None" = None,
    ) -> None:
        """Compute transformers' hidden states, before anything of the model is changed; not where
        an earlier start has compared the same weights, by the `mark` of rank 0.

        Raises `ModelError` for weights in files that give no numbers.
        """
        self._mark = mark
        self._expected: tuple[Array, Array] | None = None
        is_known = mark is not None and this_machine().get(mark) == _AS_TRANSFORMERS
        if ranks is not None and not isinstance(model, WeightSource):
            is_known = ranks.agree(is_known, model.device)
        if not is_known:
            from slipstream.models.torch.transformers_model import computed_states

            own = model.reference() if isinstance(model, WeightSource) else model
            own.requires_grad_(False).eval()
            self._expected = computed_states(own, sample_tokens(vocab_size))
            if isinstance(model, WeightSource):
                hidden = self._expected[0]
                if not (np.isfinite(hidden).all() and hidden.any()):
                    raise ModelError(f"{model.name} can't be served: {_without_numbers(model)}")

    def check(self, sample: Callable[[], tuple[Array, Array]], sizes: ModelSizes) -> None:
        """Raise `ModelError` where `sample()`, our hidden states and last logits, fails, or gives
        other ones than transformers."""
        if self._expected is None:
            return
        name, kind = sizes.name, sizes.weights_type
        try:
            found = sample()
        except ModelError as error:
            raise ModelError(f"{name} can't be served: {error}") from None
        except Exception as error:  # modelling code has many forms
            reason = f"its modelling code can't run over our cache ({brief(error)})"
            raise ModelError(f"{name} can't be served: {reason}") from error
        named = zip(("hidden states", "logits"), found, self._expected, strict=True)
        for what, own, expected in named:
            limit = _TOLERANCE.get(kind if kind == FP8 else expected.dtype.name, 0.02)
            exact = expected.astype(np.float32)
            share = np.linalg.norm(own.astype(np.float32) - exact) / np.linalg.norm(exact)
            if not share < limit:
                difference = f"{what} differ from transformers' own by {share:.2g} (limit {limit})"
                raise ModelError(f"{name} can't be served: {difference}")
        if self._mark is not None:
            this_machine().keep(self._mark, _AS_TRANSFORMERS)


def _without_numbers(source: WeightSource) -> str:
    names = (name for name, _ in source.architecture.tensors())
    odd = next((name for name in names if not np.isfinite(source.dense(name)).all()), None)
    if odd is None:
        return f"weights of the types {source.weights_type()} are too large for its hidden states"
    return f"{source.title(odd)} has weights that are no numbers"


def sample_tokens(vocab_size: int) -> list[int]:
    """Return random token ids, the same ones at every call."""
    tokens: list[int] = np.random.default_rng(0).integers(vocab_size, size=SAMPLE_TOKENS).tolist()
    return tokens


def mark_of(
    model: "WeightSource | PreTrainedModel", path: Path | None, computed: str
) -> str | None:
    """Return the name under which it is kept that a forward was compared: by the weights, which are
    those in `path` for a model of transformers, and by what has `computed` it; None for weights in
    memory."""
    if isinstance(model, WeightSource):
        identity, numbers = model.identity(), f"{model.weights_type()} {_native()}"
        return None if identity is None else f"forward of {identity} {numbers}"
    if path is None:
        return None
    config = bytes_digest(model.config.to_json_string().encode())  # has transformers' version
    return f"forward of {weights_digest(path)} {config} {_computer(model)} {computed}"


def _computer(model: "PreTrainedModel") -> str:
    if model.device.type == CPU:
        return _native() if library.has_kernels() else CPU
    import torch

    return torch.cuda.get_device_name(model.device)


@cache
def _native() -> str:
    return f"{library.kernels()} {file_digest(library.PATH)[:16]}"
