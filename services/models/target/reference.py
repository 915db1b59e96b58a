"""Comparison of our forward with transformers' own, on a few tokens, when a model is loaded.

Weights in files are compared once for each machine: a later start trusts the result while the
files and the native library stay the same. The reference has the weights of a layer in memory
only while the layer runs.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from slipstream.core.errors import ModelError, WeightsError
from slipstream.models.machine import this_machine
from slipstream.models.native import library
from slipstream.models.native.source import WeightSource
from slipstream.models.store.digests import file_digest
from slipstream.models.store.folder import brief
from slipstream.models.target.architecture import HEAD

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


SAMPLE_TOKENS = 24
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}
_AS_TRANSFORMERS = "as transformers"


class ReferenceCheck:
    """Comparison of our forward of a model with transformers' own."""

    def __init__(self, model: "WeightSource | PreTrainedModel") -> None:
        """Compute transformers' hidden states, before anything of the model is changed; not where
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


def lent_model(source: "WeightSource", config: "PretrainedConfig") -> Any:
    """Return a model of a configuration over the weights of a source.

    Raises `WeightsError` for a configuration that describes no model.
    """
    from transformers import AutoModelForCausalLM

    config.tie_word_embeddings = source.is_tied
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=source.dtype)
    except Exception as error:  # a configuration may break anything
        raise WeightsError(f"{source.name} does not describe a model ({brief(error)})") from error
    body: Any = model.base_model
    body.rotary_emb = type(body.rotary_emb)(config=config)
    for name in ("embed_tokens", "norm"):
        _fill(body.get_submodule(name), f"model.{name}", source)
    model.tie_weights()
    if not source.is_tied:
        _fill(model.get_output_embeddings(), HEAD.removesuffix(".weight"), source)
    for at, layer in enumerate(body.layers):
        _lend(layer, at, source)
    return model.eval().requires_grad_(False)


def _lend(layer: nn.Module, index: int, source: "WeightSource") -> None:
    """Give a layer its weights whenever it runs, and take them back."""

    def take_back(*_: Any) -> None:
        layer.to("meta")
        source.release(index)

    layer.register_forward_pre_hook(lambda *_: _fill(layer, f"model.layers.{index}", source))
    layer.register_forward_hook(take_back)


def _fill(module: nn.Module, name: str, source: "WeightSource") -> None:
    own = {at: source.dense(f"{name}.{at}") for at, _ in module.named_parameters()}
    module.load_state_dict(own, assign=True)
