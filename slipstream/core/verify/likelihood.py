"""Log-probabilities of tokens, by the raw logits of the positions that a walk decided.

One row at a time, so that a row gives the same values whatever stands beside it. What bias,
penalties, grammars and truncation make of the logits changes nothing here.
"""

import math
from collections.abc import Sequence

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.core.logprobs import TokenLogprob, TopLogprob
from slipstream.core.tree import TokenTree
from slipstream.core.verify.distribution import ordered_top
from slipstream.core.verify.noise import Floats
from slipstream.core.verify.walk import PositionRule, WalkStep


def token_logprob(logits: Floats, token: int, num_top: int) -> TokenLogprob:
    """Log-softmax of `logits` [V] fp32 at `token`, and at the `num_top` best tokens in order.

    Raises `ModelError` where the logits are no distribution.
    """
    best = float(logits.max())
    if not math.isfinite(best):
        raise ModelError(f"the best logit of a position is {best}, so nothing is likely there")
    ids = [token]
    if num_top:
        ids += ordered_top(logits, num_top)[1].tolist()
    log_mass = math.log(np.exp(logits - best).sum(dtype=np.float64))
    # In fp64, where different logits stay different: the order is that of the logits.
    values = np.minimum(logits[ids].astype(np.float64) - best - log_mass, 0.0).tolist()
    top = zip(ids[1:], values[1:], strict=True)
    return TokenLogprob(values[0], tuple(TopLogprob(*item) for item in top))


def recording(
    rule: PositionRule, tree: TokenTree, *, num_top: int, logprobs: list[TokenLogprob]
) -> PositionRule:
    """Return the same rule, which appends the log-probability of each token that it decides."""

    def step(node: int, logits: Floats, tokens: Sequence[int]) -> WalkStep:
        decided = rule(node, logits, tokens)
        token = decided.token if decided.child is None else tree.tokens[decided.child]
        assert token is not None, "a lossless mode ends every walk with a token"
        logprobs.append(token_logprob(logits, token, num_top))
        return decided

    return step
