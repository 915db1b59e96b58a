"""The likeliest column of rows of scores. Knows nothing of what the columns stand for."""

import torch
from torch import Tensor


def best_columns(scores: Tensor) -> Tensor:
    """`argmax(-1)` of [R, V], block maxima first: several times faster than one long reduction."""
    block = 64
    if scores.shape[-1] % block:
        return scores.argmax(-1)
    blocks = scores.unflatten(-1, (-1, block))
    best = blocks.amax(-1).argmax(-1)
    inner = blocks[torch.arange(len(scores), device=scores.device), best].argmax(-1)
    out: Tensor = best * block + inner
    return out
