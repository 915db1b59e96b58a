"""Comparison of our forward with transformers' own, on a few tokens, when a model is loaded.

Weights in files are compared once for each machine: a later start trusts the result while the
files and the native library stay the same. The reference has the weights of a layer in memory
only while the layer runs.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import Array
from slipstream.models.format.digests import file_digest
from slipstream.models.format.folder import brief
from slipstream.models.machine import this_machine
from slipstream.models.native import library
from slipstream.models.native.source import WeightSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


SAMPLE_TOKENS = 24
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.08, "float16": 0.02}
_AS_TRANSFORMERS = "as transformers"


class ReferenceCheck:
    """Comparison of our forward of a model with transformers' own."""

    def __init__(self, model: "WeightSource | PreTrainedModel", vocab_size: int) -> None:
        """Compute transformers' hidden states, before anything of the model is changed; not where
        an earlier start has compared the same weights. Raises `ModelError` for weights in files
        that give no numbers."""
        self._mark = _mark(model)
        self._expected: tuple[Array, Array] | None = None
        if self._mark is None or this_machine().get(self._mark) != _AS_TRANSFORMERS:
            from slipstream.models.torch.transformers_model import computed_states

            own = model.reference() if isinstance(model, WeightSource) else model
            own.requires_grad_(False).eval()
            self._expected = computed_states(own, sample_tokens(vocab_size))
            if isinstance(model, WeightSource) and not _is_usable(self._expected[0]):
                raise ModelError(f"{model.name} can't be served: {_without_numbers(model)}")

    def check(self, sample: Callable[[], tuple[Array, Array]], name: str) -> None:
        """Raise `ModelError` where `sample()`, our hidden states and last logits, fails, or gives
        other ones than transformers."""
        if self._expected is None:
            return
        try:
            found = sample()
        except ModelError as error:
            raise ModelError(f"{name} can't be served: {error}") from None
        except Exception as error:  # modelling code has many forms
            reason = f"its modelling code can't run over our cache ({brief(error)})"
            raise ModelError(f"{name} can't be served: {reason}") from error
        named = zip(("hidden states", "logits"), found, self._expected, strict=True)
        for what, own, expected in named:
            check_states(own, expected, f"{name} can't be served: {what}")
        if self._mark is not None:
            this_machine().keep(self._mark, _AS_TRANSFORMERS)


def _is_usable(hidden: Array) -> bool:
    return bool(np.isfinite(hidden).all() and hidden.any())


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


def check_states(own: Array, expected: Array, subject: str) -> None:
    """Raise `ModelError` where our numbers are not those of transformers."""
    exact = expected.astype(np.float32)
    error = np.linalg.norm(own.astype(np.float32) - exact) / np.linalg.norm(exact)
    limit = _TOLERANCE.get(expected.dtype.name, 0.02)
    if not error < limit:
        raise ModelError(f"{subject} differ from transformers' own by {error:.2g} (limit {limit})")


def _mark(model: "WeightSource | PreTrainedModel") -> str | None:
    """The name under which it is kept that a forward was compared; None for weights in memory."""
    if not isinstance(model, WeightSource) or (identity := model.identity()) is None:
        return None
    return f"forward of {identity} {model.weights_type()} {library.kernels()} {_library_digest()}"


@cache
def _library_digest() -> str:
    return file_digest(library.PATH)[:16]
