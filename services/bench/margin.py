"""How close a choice of plain decoding was. A small margin is a near-tie; a large one is a bug."""

from collections.abc import Sequence

import torch

from slipstream.core.keyed_noise import Purpose
from slipstream.core.laws import LawContext
from slipstream.core.noise import gumbel
from slipstream.core.types import SamplingParams
from slipstream.models.causal import CausalModel
from slipstream.models.rows import Part


def margin(model: CausalModel, prefix: Sequence[int], sampling: SamplingParams) -> float:
    """Score of the token chosen after `prefix` over that of the next best.

    Greedy: the gap of the two best logits. Else the gap of log-probabilities (up to the law's
    normaliser) plus noise, the sum whose largest value is drawn.
    """
    cache = model.open(len(prefix))
    model.prefill(cache, prefix[:-1])
    hidden, _ = model.forward([Part(cache, prefix[-1:])])
    logits = model.logits(hidden)[0].float()
    scores = LawContext(sampling, len(prefix)).scores(logits, prefix)
    if not sampling.is_greedy:
        ids = torch.arange(scores.shape[0], dtype=torch.int32, device=scores.device)
        noise = gumbel(sampling.seed, len(prefix), ids, purpose=Purpose.DRAW)
        scores = scores + noise
    best = scores.topk(2).values
    return float(best[0] - best[1])
