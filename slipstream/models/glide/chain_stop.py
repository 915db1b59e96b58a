"""A slot of chains, read where its scores are: candidates, their probabilities, and whether a chain
ends there: the policies of `core.policy.stop` and the decision model as tensors.

The same double arithmetic in the same order, so that a device stops where the host would.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.core.errors import WeightsError
from slipstream.core.policy.stop import SVIP_SLOPE
from slipstream.models.cuda.draws import perturbed, top_by_key
from slipstream.models.decision import EPS, GREEDY, LEAST, MOST, NUM_STATS, SAMPLED, DecisionModel
from slipstream.models.scorer import COST, DECISION, SVIP

GOES_ON, AT_END, AT_LIMIT, BY_POLICY = range(4)
"""Ends of a chain: a token that nothing follows, the depth it may have, or its policy."""
MAX_ENDS = 8
"""Tokens that nothing can follow, a chain at most."""


class ChainNumber(IntEnum):
    """Numbers of a chain, float64, of which `ENDS` are `MAX_ENDS`, and `POINTS` the last ones."""

    HEAT = 0
    THRESHOLD = 1
    FALLBACK = 2
    LEAST_PATH = 3
    """Least probability of a path for one more token on it; 0 for any."""
    POLICY = 4
    MAX_DEPTH = 5
    LIMIT = 6
    ASKS_SCORE = 7
    NUM_POINTS = 8
    ENDS = 9
    """Tokens that nothing follows; -1 for none."""
    POINTS = 9 + MAX_ENDS
    """Measured acceptance by confidence, `NUM_POINTS` points; see `core.policy.stop`."""


class StepNumber(IntEnum):
    """Numbers of a chain's step, int64."""

    POSITION = 0
    SLOT = 1
    COUNT = 2
    """Number of its own keys that its token sees."""
    NUM_READ = 3
    """Number of the target's."""
    LAG = 4
    """Tokens from the newest key of the target to the slot behind it."""
    FIRST_KEY = 5
    SECOND_KEY = 6


class StateNumber(IntEnum):
    """State of a chain, float64."""

    TOKEN = 0
    LENGTH = 1
    REASON = 2
    PATH_PROB = 3


@torch.library.custom_op("slipstream::read_chain", mutates_args=(), device_types="cpu")
def read_chain(
    logits: Tensor, first: Tensor, head: list[Tensor], chains: list[Tensor], num: int
) -> tuple[Tensor, Tensor]:
    """Return the states [4, B] behind a slot, and its numbers [B, 3 + 2 * num], both float64.

    `logits` [B, V_d] of `head`: the tokens [V_d] of their columns and, where there is a decision
    model, the last two of its weights, whose first layer has given `first` [B, width + 2]. `chains`
    are steps [7, B] (`StepNumber`), numbers [B, n] of their chains (`ChainNumber`) and states
    before (`StateNumber`). Numbers of a slot are entropy, top probability, score, `num` candidates
    and their probabilities. A GPU's is in `cuda.chain_kernels`.
    """
    (vocab, *weights), (steps, rules, state) = head, chains
    heat, keys = rules[:, ChainNumber.HEAT], steps[StepNumber.FIRST_KEY :].t().to(torch.int32)
    ranked = perturbed(logits.float(), heat.float(), keys, vocab, sharpness=SHARPNESS)
    log_probs = torch.log_softmax(ranked, -1)
    entropies = -torch.linalg.vecdot(log_probs.exp(), log_probs.clamp(min=LEAST))
    tops, columns = log_probs.topk(2).values, top_by_key(ranked, num)[1]
    scores = torch.full_like(heat, float("nan"))
    if weights:
        stats = device_stats(tops, entropies, steps[StepNumber.LAG])
        probs = decided(first, stats, *weights).sigmoid().double()
        own = torch.where(heat == 0, probs[:, GREEDY], probs[:, SAMPLED])
        scores = torch.where(rules[:, ChainNumber.ASKS_SCORE] > 0, own, scores)
    slot = ChainSlot(
        tokens=vocab[columns],
        probs=log_probs.gather(1, columns).exp(),
        entropies=entropies.double(),
        top_probs=tops[:, 0].exp().double(),
        scores=scores,
    )
    return state_behind(slot, rules, state), slot.numbers()


@read_chain.register_fake
def _(
    logits: Tensor, first: Tensor, head: list[Tensor], chains: list[Tensor], num: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(chains[2]), chains[2].new_empty(len(logits), 3 + 2 * num)


@dataclass(frozen=True, slots=True)
class ChainSlot:
    """One slot of B chains."""

    tokens: Tensor
    probs: Tensor
    entropies: Tensor
    top_probs: Tensor
    scores: Tensor

    def numbers(self) -> Tensor:
        """Return [B, 3 + 2 * candidates] float64, which holds floats and ids as they are."""
        singles = torch.stack([self.entropies, self.top_probs, self.scores], 1)
        return torch.cat([singles, self.tokens.double(), self.probs.double()], 1)


def state_behind(slot: ChainSlot, rules: Tensor, state: Tensor) -> Tensor:
    """Return the states [4, B] of chains behind a slot, which every one that goes on keeps."""
    _, length, reason, path = state
    known = _acceptance(slot.top_probs, rules)
    probs = torch.where(slot.scores.isnan(), known, slot.scores)
    path, depth, token = path * probs, length + 1, slot.tokens[:, 0].double()
    stops = _stops(slot, rules, path, probs) | (rules[:, ChainNumber.MAX_DEPTH] <= depth)
    found = torch.where(stops, BY_POLICY, GOES_ON)
    found = torch.where(rules[:, ChainNumber.LIMIT] <= depth, AT_LIMIT, found)
    is_end = (rules[:, ChainNumber.ENDS : ChainNumber.POINTS] == token[:, None]).any(1)
    found = torch.where(is_end, AT_END, found).double()
    is_alive = reason == GOES_ON
    return torch.stack([token, length + is_alive, torch.where(is_alive, found, reason), path])


def _acceptance(top_probs: Tensor, rules: Tensor) -> Tensor:
    """Return the probabilities [B] that tokens of these confidences are kept; 0 for nan."""
    counts, points = rules[:, ChainNumber.NUM_POINTS], rules[:, ChainNumber.POINTS :]
    place = top_probs.nan_to_num(0.0).clamp(0.0, 1.0) * (counts - 1)
    below = torch.minimum(place.floor(), counts - 2)
    low = points.gather(1, below.long()[:, None]).squeeze(1)
    high = points.gather(1, below.long()[:, None] + 1).squeeze(1)
    return torch.where(top_probs.isnan(), 0.0, low + (place - below) * (high - low))


def _stops(slot: ChainSlot, rules: Tensor, path: Tensor, probs: Tensor) -> Tensor:
    """Return whether policies end paths whose last tokens are kept with these chances [B]."""
    policy, threshold = rules[:, ChainNumber.POLICY], rules[:, ChainNumber.THRESHOLD]
    bound = torch.sqrt(SVIP_SLOPE * slot.entropies.clamp(min=0.0))
    svip = bound > torch.where(policy == DECISION, rules[:, ChainNumber.FALLBACK], threshold)
    decision = torch.where(slot.scores.isnan(), svip, slot.scores <= threshold)
    # Comparisons with what is no number are false, which leaves the limit on length.
    by_policy = (policy == SVIP) & svip
    by_policy |= (policy == DECISION) & decision
    by_policy |= (policy == COST) & (path * probs < threshold)
    return by_policy | (path < rules[:, ChainNumber.LEAST_PATH])


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
        return decided(self.first(hidden), stats, self.stats.weight, self.out.weight)

    def first(self, hidden: Tensor) -> Tensor:
        """Return what the first layer makes of hidden states [R, d], [R, width + 2]."""
        found: Tensor = self.hidden(hidden.to(self.hidden.weight.dtype))
        return found

    def model(self) -> DecisionModel:
        """Return the model with these weights."""
        weights = {name: value.numpy(force=True) for name, value in self.state_dict().items()}
        return DecisionModel(weights)


def decided(first: Tensor, stats: Tensor, of_stats: Tensor, out: Tensor) -> Tensor:
    """Return logits [R, 2] of what the first layer makes of states [R, width + 2], and statistics
    [R, 4]."""
    units, base = (first + stats @ of_stats.t()).split((out.shape[1], 2), -1)
    return torch.addmm(base, units.relu(), out.t())


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
