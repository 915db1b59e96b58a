"""Log-probabilities of tokens, by the raw logits of the positions that a walk decided.

One row at a time, so that a row gives the same values whatever stands beside it. What bias,
penalties, grammars and truncation make of the logits changes nothing here.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.core.draft.candidates import ordered_top
from slipstream.core.errors import ModelError
from slipstream.core.text.logprobs import TokenLogprob, TopLogprob
from slipstream.core.tree import TokenTree
from slipstream.core.verify.walk import PositionRule, WalkStep


def token_logprob(logits: Tensor, token: int, num_top: int) -> TokenLogprob:
    """Log-softmax of `logits` [V] fp32 at `token`, and at the `num_top` best tokens in order.

    Raises `ModelError` where the logits are no distribution.
    """
    best = float(logits.max())
    if not math.isfinite(best):
        raise ModelError(f"the best logit of a position is {best}, so nothing is likely there")
    ids = torch.tensor([token], device=logits.device)
    if num_top:
        ids = torch.cat([ids, ordered_top(logits, num_top)[1]])
    # In fp64, where different logits stay different: the order is that of the logits.
    relative = logits[ids].double() - best
    values = (relative - math.log(_mass(logits, best))).clamp_(max=0.0).tolist()
    top = zip(ids[1:].tolist(), values[1:], strict=True)
    return TokenLogprob(values[0], tuple(TopLogprob(*item) for item in top))


def recording(
    rule: PositionRule, tree: TokenTree, *, num_top: int, logprobs: list[TokenLogprob]
) -> PositionRule:
    """Return the same rule, which appends the log-probability of each token that it decides."""

    def step(node: int, logits: Tensor, tokens: Sequence[int]) -> WalkStep:
        decided = rule(node, logits, tokens)
        token = decided.token if decided.child is None else tree.tokens[decided.child]
        assert token is not None, "a lossless mode ends every walk with a token"
        logprobs.append(token_logprob(logits, token, num_top))
        return decided

    return step


def _mass(logits: Tensor, best: float) -> float:
    """Sum of the exponentials of `logits` [V] relative to the best."""
    mass = (logits - best).exp_()
    if mass.device.type == "cpu":  # numpy adds in the same order, however many threads there are
        return float(mass.numpy().sum(dtype=np.float64))
    return float(mass.sum(dtype=torch.float64))
