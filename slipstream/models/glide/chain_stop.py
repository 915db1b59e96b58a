"""A slot of chains on a device: the numbers that the operator `read_chain` of `cuda.chain_kernels`
takes and gives, and the decision model in torch.
"""

from enum import IntEnum

import torch
from torch import Tensor, nn

from slipstream.core.errors import WeightsError
from slipstream.models.decision import NUM_STATS, DecisionModel

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


torch.library.define(
    "slipstream::read_chain",
    "(Tensor logits, Tensor first, Tensor[] head, Tensor[] chains, SymInt num) -> (Tensor, Tensor)",
)


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
        first = self.hidden(hidden.to(self.hidden.weight.dtype)) + self.stats(stats)
        units, base = first.split((self.width, 2), -1)
        return torch.addmm(base, units.relu(), self.out.weight.t())

    def model(self) -> DecisionModel:
        """Return the model with these weights."""
        weights = {name: value.numpy(force=True) for name, value in self.state_dict().items()}
        return DecisionModel(weights)
