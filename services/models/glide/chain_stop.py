"""Ends of chains, decided where their numbers are: the policies of `core.policy.stop` and the
decision model as tensors.

The same double arithmetic in the same order, so that a device stops where the host would.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.policy.stop import (
    SVIP_SLOPE,
    CostStop,
    DecisionStop,
    FixedStop,
    Stop,
    SvipStop,
)
from slipstream.models.decision import EPS, MOST, DecisionModel

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
    """Return a policy as numbers; None for one that is not known here."""
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
    min_path_probs: Tensor
    """Least probability of a path for one more token on it; 0 for any."""


class Confidence(NamedTuple):
    """Measured acceptance of B chains by confidence: `points` [B, C], of which each has `counts`
    [B]; see `core.policy.stop`."""

    points: Tensor
    counts: Tensor

    def probability(self, top_probs: Tensor) -> Tensor:
        """Return the probabilities [B] that tokens of these confidences are kept; 0 for nan."""
        place = top_probs.nan_to_num(0.0).clamp(0.0, 1.0) * (self.counts - 1)
        below = torch.minimum(place.long(), self.counts - 2).unsqueeze(1)
        low = self.points.gather(1, below).squeeze(1)
        high = self.points.gather(1, below + 1).squeeze(1)
        prob = low + (place - below.squeeze(1)) * (high - low)
        return torch.where(top_probs.isnan(), 0.0, prob)


class Signals(NamedTuple):
    """Numbers of B chains after a token was appended: [B] float64 each.

    `scores` are nan without a decision model; `probs` are those that the token is kept,
    `path_probs` that its whole path is.
    """

    entropies: Tensor
    scores: Tensor
    probs: Tensor
    path_probs: Tensor


def should_stop(rules: Rules, signals: Signals, *, depth: int) -> Tensor:
    """Return whether the token at `depth` is the last to draft on its path, bool [B]."""
    policies = rules.policies
    bound = torch.sqrt(SVIP_SLOPE * signals.entropies.clamp(min=0.0))
    svip = bound > torch.where(policies == DECISION, rules.fallbacks, rules.thresholds)
    decision = torch.where(signals.scores.isnan(), svip, signals.scores <= rules.thresholds)
    # Comparisons with what is no number are false, which leaves the limit on length.
    cost = signals.path_probs * signals.probs < rules.thresholds
    by_policy = (policies == SVIP) & svip
    by_policy |= (policies == DECISION) & decision
    by_policy |= (policies == COST) & cost
    by_policy |= signals.path_probs < rules.min_path_probs
    return by_policy | (rules.max_depths <= depth)


class DeviceDecision:
    """A decision model's weights on a device."""

    def __init__(self, model: DecisionModel, device: torch.device) -> None:
        self._weights = [torch.tensor(values, device=device) for values in model.weights.values()]

    def score(self, hidden: Tensor, stats: Tensor) -> Tensor:
        """See `DecisionModel.score`."""
        into, bias, of_stats, out = self._weights
        first = torch.addmm(F.linear(hidden.to(into.dtype), into, bias), stats, of_stats.t())
        units, base = first.split((len(into) - 2, 2), -1)
        return torch.addmm(base, units.relu(), out.t()).sigmoid()


def device_stats(log_probs: Tensor, entropies: Tensor, lags: Tensor) -> Tensor:
    """`slot_stats` of R slots [R, 4] on their device: of the two likeliest [R, 2], entropies [R]
    and lags [R]."""
    best, second = log_probs.double().unbind(1)
    odds = best - torch.log((-torch.expm1(best)).clamp(min=EPS))
    ratio = (best - second).clamp(max=MOST)
    columns = [odds.clamp(max=MOST), entropies.double(), ratio, lags.double()]
    return torch.stack(columns, 1).float()


@dataclass(frozen=True, slots=True)
class ChainScores:
    """One slot of B chains."""

    tokens: Tensor
    probs: Tensor
    entropies: Tensor
    top_probs: Tensor
    scores: Tensor

    def numbers(self) -> Tensor:
        """Return [B, num_outputs] float64, which holds floats and ids as they are."""
        singles = torch.stack([self.entropies, self.top_probs, self.scores], 1)
        return torch.cat([singles, self.tokens.double(), self.probs.double()], 1)


class ChainEnds:
    """Ends of B chains: `lengths`, and `reasons` [B] of those that have ended.

    Nothing follows a token of `ends` [B, n], and no chain is longer than its limit [B].
    """

    def __init__(self, limits: Tensor, ends: Tensor, rules: Rules, confidence: Confidence) -> None:
        self.lengths = torch.zeros_like(limits)
        self.reasons = torch.full_like(limits, GOES_ON)
        self._path_probs = torch.ones_like(rules.thresholds)
        self._limits, self._ends = limits, ends
        self._rules, self._confidence = rules, confidence

    def count(self, slot: ChainScores, depth: int) -> None:
        """Count the tokens at `depth`, which is kept in every chain that still goes on."""
        known = self._confidence.probability(slot.top_probs)
        probs = torch.where(slot.scores.isnan(), known, slot.scores)
        self._path_probs = self._path_probs * probs
        signals = Signals(slot.entropies, slot.scores, probs, self._path_probs)
        reasons = torch.where(should_stop(self._rules, signals, depth=depth), BY_POLICY, GOES_ON)
        reasons = torch.where(self._limits <= depth, AT_LIMIT, reasons)
        is_end = (self._ends == slot.tokens[:, :1]).any(1)
        reasons = torch.where(is_end, AT_END, reasons)
        is_alive = self.reasons == GOES_ON
        self.lengths = self.lengths + is_alive
        self.reasons = torch.where(is_alive, reasons, self.reasons)
