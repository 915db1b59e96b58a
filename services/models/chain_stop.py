"""When a chain ends, decided where its numbers are: the policies of `core.stop` as tensors.

The same double arithmetic in the same order, so that a device stops where the host would.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.core.stop import SVIP_SLOPE, CostStop, DecisionStop, FixedStop, Stop, SvipStop

FIXED, SVIP, DECISION, COST = range(4)

GOES_ON, AT_END, AT_LIMIT, BY_POLICY = range(4)
"""Why a chain ended: a token that nothing follows, the depth it may have, or its policy."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One chain's policy as numbers."""

    policy: int
    max_depth: int
    threshold: float = 0.0
    fallback: float = 0.0
    """SVIP's threshold, where the decision model has no score."""


def rule_of(stop: Stop) -> Rule | None:
    """The policy as numbers; None for one that is not known here."""
    match stop:
        case FixedStop(max_depth=depth):
            return Rule(FIXED, depth)
        case SvipStop(threshold=threshold, limit=limit):
            return Rule(SVIP, limit.max_depth, threshold)
        case DecisionStop(threshold=threshold, fallback=svip):
            return Rule(DECISION, svip.limit.max_depth, threshold, svip.threshold)
        case CostStop(cost_ratio=ratio, limit=limit):
            return Rule(COST, limit.max_depth, ratio)
    return None


class Rules(NamedTuple):
    """The policies of B chains: [B] each, integers int64, the rest float64."""

    policies: Tensor
    max_depths: Tensor
    thresholds: Tensor
    fallbacks: Tensor
    worths: Tensor
    """Least chances of a path that make one more token worth its row; 0 for any."""


class Confidence(NamedTuple):
    """Measured acceptance of B chains by confidence: `points` [B, C], of which each has `counts`
    [B]; see `core.calibration`."""

    points: Tensor
    counts: Tensor

    def probability(self, top_probs: Tensor) -> Tensor:
        """The chance that tokens of these confidences [B] float64 are kept; 0 for no number."""
        place = top_probs.nan_to_num(0.0).clamp(0.0, 1.0) * (self.counts - 1)
        below = torch.minimum(place.long(), self.counts - 2).unsqueeze(1)
        low = self.points.gather(1, below).squeeze(1)
        high = self.points.gather(1, below + 1).squeeze(1)
        chance = low + (place - below.squeeze(1)) * (high - low)
        return torch.where(top_probs.isnan(), 0.0, chance)


class Signals(NamedTuple):
    """What is known of B chains after a token was appended: [B] float64 each.

    `scores` are no numbers where no decision model was asked; `chances` are those that the token
    is kept, `path_probs` that its whole path is.
    """

    entropies: Tensor
    scores: Tensor
    chances: Tensor
    path_probs: Tensor


def should_stop(rules: Rules, signals: Signals, *, depth: int) -> Tensor:
    """Whether the token at `depth` is the last to draft on its path, bool [B]."""
    policies = rules.policies
    bound = torch.sqrt(SVIP_SLOPE * signals.entropies.clamp(min=0.0))
    svip = bound > torch.where(policies == DECISION, rules.fallbacks, rules.thresholds)
    decision = torch.where(signals.scores.isnan(), svip, signals.scores <= rules.thresholds)
    # Comparisons with what is no number are false, which leaves the limit on length.
    cost = signals.path_probs * signals.chances < rules.thresholds
    by_policy = (policies == SVIP) & svip
    by_policy |= (policies == DECISION) & decision
    by_policy |= (policies == COST) & cost
    by_policy |= signals.path_probs < rules.worths
    return by_policy | (rules.max_depths <= depth)
