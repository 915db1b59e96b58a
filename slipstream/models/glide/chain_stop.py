"""Ends of chains, decided where their numbers are: the policies of `core.policy.stop` and the
decision model as tensors.

The same double arithmetic in the same order, so that a device stops where the host would.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipstream.core.errors import WeightsError
from slipstream.core.policy.stop import SVIP_SLOPE
from slipstream.models.decision import EPS, MOST, NUM_STATS, DecisionModel
from slipstream.models.scorer import COST, DECISION, SVIP

GOES_ON, AT_END, AT_LIMIT, BY_POLICY = range(4)
"""Ends of a chain: a token that nothing follows, the depth it may have, or its policy."""


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


class DecisionNetwork(nn.Module):
    """The network of a `DecisionModel`. Untrained, it takes the draft's top-1 probability at its
    word."""

    def __init__(self, hidden_size: int, width: int = 32) -> None:
        super().__init__()
        if min(hidden_size, width) < 1:
            raise WeightsError(f"hidden_size {hidden_size} and width {width} must be 1 or more")
        self.width = width
        self.hidden = nn.Linear(hidden_size, width + 2)
        self.stats = nn.Linear(NUM_STATS, width + 2, bias=False)
        self.out = nn.Linear(width, 2, bias=False)
        nn.init.zeros_(self.out.weight)
        with torch.no_grad():
            self.hidden.weight[width:] = 0
        self.set_base(torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2), torch.zeros(2))

    @torch.no_grad()
    def set_base(self, weight: Tensor, bias: Tensor) -> None:
        """Set the logistic model's weights [2, 4] of the statistics, and its bias [2]."""
        self.stats.weight[self.width :] = weight
        self.hidden.bias[self.width :] = bias

    def forward(self, hidden: Tensor, stats: Tensor) -> Tensor:
        """Hidden states [R, d], statistics [R, 4] as in `slot_stats` -> logits [R, 2]."""
        first = self.hidden(hidden.to(self.hidden.weight.dtype))
        units, base = (first + self.stats(stats)).split((self.width, 2), -1)
        return torch.addmm(base, units.relu(), self.out.weight.t())

    def model(self) -> DecisionModel:
        """Return the model with these weights."""
        weights = {name: value.numpy(force=True) for name, value in self.state_dict().items()}
        return DecisionModel(weights)


def network_of(model: DecisionModel, device: torch.device) -> DecisionNetwork:
    """Return the network with a model's weights, on a device."""
    width, hidden_size = model.weights["hidden.weight"].shape
    network = DecisionNetwork(hidden_size, width - 2)
    network.load_state_dict({name: torch.tensor(own) for name, own in model.weights.items()})
    return network.requires_grad_(False).to(device)


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
        stops = self._stops(slot, probs) | (self._rules.max_depths <= depth)
        reasons = torch.where(stops, BY_POLICY, GOES_ON)
        reasons = torch.where(self._limits <= depth, AT_LIMIT, reasons)
        is_end = (self._ends == slot.tokens[:, :1]).any(1)
        reasons = torch.where(is_end, AT_END, reasons)
        is_alive = self.reasons == GOES_ON
        self.lengths = self.lengths + is_alive
        self.reasons = torch.where(is_alive, reasons, self.reasons)

    def _stops(self, slot: ChainScores, probs: Tensor) -> Tensor:
        """Return whether policies end paths whose last tokens are kept with these chances [B]."""
        rules, policies = self._rules, self._rules.policies
        bound = torch.sqrt(SVIP_SLOPE * slot.entropies.clamp(min=0.0))
        svip = bound > torch.where(policies == DECISION, rules.fallbacks, rules.thresholds)
        decision = torch.where(slot.scores.isnan(), svip, slot.scores <= rules.thresholds)
        # Comparisons with what is no number are false, which leaves the limit on length.
        cost = self._path_probs * probs < rules.thresholds
        by_policy = (policies == SVIP) & svip
        by_policy |= (policies == DECISION) & decision
        by_policy |= (policies == COST) & cost
        return by_policy | (self._path_probs < rules.min_path_probs)
