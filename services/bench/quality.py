"""Distance of one model's next-token distributions from another's on the same texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.models.target.causal import CausalModel
from slipstream.models.target.token_layout import Part
from slipstream.models.torch_arrays import as_tensor

_CHUNK = 256
"""Tokens of a text that are read together."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Agreement of a model with the reference.

    `top1`: share of positions with the same most probable token; `kl`: mean KL divergence of the
    model from the reference, in nats; `perplexity` and `reference_perplexity`: of the texts.
    """

    num_tokens: int
    top1: float
    kl: float
    perplexity: float
    reference_perplexity: float


def cut(texts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """Return chunks of texts, as token ids, that have `num_tokens` next tokens together.

    Raises `InvalidRequest` where the texts are shorter.
    """
    chunks: list[list[int]] = []
    left = num_tokens
    for text in texts:
        for start in range(0, len(text) - 1, _CHUNK):
            chunk = list(text[start : start + min(_CHUNK, left) + 1])
            if left > 0 and len(chunk) > 1:
                chunks.append(chunk)
                left -= len(chunk) - 1
    if left > 0:
        raise InvalidRequest(
            f"num_tokens is {num_tokens}, but the texts have {num_tokens - left} to compare"
        )
    return chunks


def compare(reference: CausalModel, model: CausalModel, chunks: Sequence[Sequence[int]]) -> Quality:
    """Compare two models of one vocabulary, position by position.

    Raises `ModelMismatch` where the vocabularies have different sizes.
    """
    if reference.vocab_size != model.vocab_size:
        raise ModelMismatch(
            f"the reference has {reference.vocab_size} tokens, the target {model.vocab_size}"
        )
    count, same, kl, loss, reference_loss = 0, 0, 0.0, 0.0, 0.0
    for chunk in chunks:
        theirs, ours = (_log_probs(at, chunk) for at in (reference, model))
        count += len(theirs)
        same += int((theirs.argmax(1) == ours.argmax(1)).sum())
        kl += float((theirs.exp() * (theirs - ours)).sum())
        targets = torch.tensor(chunk[1:])[:, None]
        loss -= float(ours.gather(1, targets).sum())
        reference_loss -= float(theirs.gather(1, targets).sum())
    perplexities = (math.exp(loss / count), math.exp(reference_loss / count))
    return Quality(count, same / count, kl / count, *perplexities)


def _log_probs(model: CausalModel, chunk: Sequence[int]) -> Tensor:
    """Return log-probabilities of what follows each token, [tokens - 1, vocab], float64."""
    cache = model.open(len(chunk))
    hidden, _ = model.forward([Part(cache, chunk[:-1])])
    log_probs: Tensor = as_tensor(model.logits(hidden)).double().log_softmax(1)
    return log_probs
