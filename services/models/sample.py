"""A few tokens through transformers' own forward, to compare ours with.

Weights in files are compared once for each machine and kept in mind: the files of a model and the
native library have to be the same for a later start to trust that.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slipstream.core.errors import ModelError
from slipstream.models.machine import this_machine
from slipstream.models.native import library
from slipstream.models.native.source import WeightSource
from slipstream.models.store.digests import file_digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLE_TOKENS = 24
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}
_AS_TRANSFORMERS = "as transformers"


class ReferenceCheck:
    """Whether our forward of a model gives what transformers' does."""

    def __init__(self, model: "WeightSource | PreTrainedModel") -> None:
        """Computes transformers' hidden states, before anything of the model is changed; not where
        an earlier start has compared the same weights."""
        self._mark = _mark(model)
        self._expected: Tensor | None = None
        if self._mark is None or this_machine().get(self._mark) != _AS_TRANSFORMERS:
            own = model.reference() if isinstance(model, WeightSource) else model
            own.requires_grad_(False).eval()
            self._expected = sample_hidden(own)

    def check(self, sample: Callable[[], Tensor], name: str) -> None:
        """Raise `ModelError` where `sample()`, our hidden states, are not those of transformers."""
        if self._expected is None:
            return
        check_hidden(sample(), self._expected, name)
        if self._mark is not None:
            this_machine().keep(self._mark, _AS_TRANSFORMERS)


def sample_tokens(vocab_size: int) -> list[int]:
    """Return random token ids, the same ones at every call."""
    noise = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(vocab_size, (SAMPLE_TOKENS,), generator=noise).tolist()
    return tokens


@torch.inference_mode()
def sample_hidden(model: "PreTrainedModel") -> Tensor:
    """Return transformers' final hidden states [SAMPLE_TOKENS, d] of these tokens."""
    head: Any = model.get_output_embeddings()
    embedding: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    tokens = torch.tensor([sample_tokens(head.weight.shape[0])], device=embedding.device)
    hidden: Tensor = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0]
    return hidden


def check_hidden(hidden: Tensor, expected: Tensor, name: str) -> None:
    """Raise `ModelError` where our hidden states are not those of transformers."""
    error = (hidden.float() - expected.float()).norm() / expected.float().norm()
    limit = _TOLERANCE.get(expected.dtype, 0.02)
    if not error < limit:
        raise ModelError(
            f"{name} can't be served: hidden states differ from transformers' own by"
            f" {error:.2g} (limit {limit})"
        )


def _mark(model: "WeightSource | PreTrainedModel") -> str | None:
    """The name under which it is kept that a forward was compared; None for weights in memory."""
    identity = model.identity() if isinstance(model, WeightSource) else None
    if identity is None:
        return None
    return f"forward of {identity} {model.dtype} {library.kernels()} {_library_digest()}"


@cache
def _library_digest() -> str:
    return file_digest(library.PATH)[:16]
