"""Training on what a chain of drafted tokens really sees: positions weighed by survival.

EAGLE-3 (training-time test) feeds a draft its own outputs, since its deeper steps read hidden
states that the draft made itself. GliDe's deeper steps read no such thing. Its input is a token
and its position, its cross-attention reads the target's keys up to the chain's start, and both
are in the block mask already; a deeper step counts only if every token drafted before it was the
target's, and then the text holds the very tokens that the draft would have fed to itself. With
several draft layers the deeper keys are made from those same inputs, so the same holds. So
unrolling comes down to which positions are reached: lag i of a chain weighs as much as it is
reached, which one forward tells for a whole block.

The agreement is that of greedy drafting with greedy verification. Where the text was sampled at a
temperature, its next token may be neither's, and survival is an estimate.
"""

import torch
from torch import Tensor

from slipstream.train.masks import Blocks


def survival_weights(agrees: Tensor, blocks: Blocks, *, chain: int, floor: float) -> Tensor:
    """Weight of each position [B, T]: 1 where a chain reaches it, else `floor`.

    agrees: [B, T] bool, whether the draft's token after a position is the target's. The chain of
    a block is its last `chain` positions; those before it in a longer block, whose text is known
    while their keys are not, are never drafted, so each weighs 1 like the chain's first.
    """
    depths = blocks.places(agrees.shape[1]) - (blocks.lengths - chain).clamp_min(0)[:, None]
    alive = torch.ones_like(agrees)
    for _ in range(chain - 1):
        reached = torch.ones_like(agrees)
        reached[:, 1:] = (alive & agrees)[:, :-1]
        alive = (depths <= 0) | reached
    return torch.where(alive, 1.0, floor)
