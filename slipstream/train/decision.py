"""Fit of a decision model to records of rounds."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.decision import GREEDY, NUM_STATS, SAMPLED, DecisionModel
from slipstream.options import Bounded, option
from slipstream.train.rounds import Records


class DecisionNetwork(nn.Module):
    """The network of a `DecisionModel`. Untrained, it takes the draft's top-1 probability at its
    word."""

    def __init__(self, hidden_size: int, width: int = 32) -> None:
        super().__init__()
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


@dataclass(frozen=True, slots=True)
class DecisionSettings(Bounded):
    """`width` is that of the hidden layer. AdamW at `lr`, in batches of `batch_rows`, until
    `patience` epochs have brought nothing, `max_epochs` at most."""

    width: int = option(32, "Width of the hidden layer.", least=1)
    lr: float = option(1e-3, "Learning rate.", above=0)
    weight_decay: float = 0.1
    batch_rows: int = 256
    max_epochs: int = option(60, "Maximum number of passes over the records.", least=1)
    patience: int = 6
    seed: int = 0


def train_decision(
    train: Records, validation: Records, settings: DecisionSettings
) -> DecisionModel:
    """Return the model of the lowest negative log-likelihood on `validation` that was met.

    It starts as the draft's confidence; the logistic part is fitted first, then all of it. So it
    is never worse on `validation` than the confidence.
    """
    torch.manual_seed(settings.seed)
    network = DecisionNetwork(train.hidden.shape[1], settings.width)
    wide = train.hidden.float()
    mean, scale = wide.mean(0), wide.std(0, correction=0).clamp_min(1e-6)
    best = _Best(network, validation, (mean, scale))
    best.offer()
    _fit_base(network, train)
    best.offer()
    hidden = (wide - mean) / scale
    groups: list[dict[str, Any]] = [
        {"params": [network.hidden.weight, network.out.weight]},  # which read the hidden state
        {"params": [network.stats.weight, network.hidden.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay)
    waited = 0
    for _ in range(settings.max_epochs):
        for rows in torch.randperm(len(train)).split(settings.batch_rows):
            optimizer.zero_grad(set_to_none=True)
            _loss(network(hidden[rows], train.stats[rows]), train, rows).backward()
            optimizer.step()
        waited = 0 if best.offer() else waited + 1
        if waited == settings.patience:
            break
    network.load_state_dict(best.state)
    with torch.no_grad():  # the first layer is to read raw states, no standardised ones
        network.hidden.weight.div_(scale)
        network.hidden.bias.sub_(network.hidden.weight @ mean)
    return network.model()


class _Best:
    """Weights of the lowest loss on the validation rows."""

    def __init__(
        self, network: DecisionNetwork, held: Records, spread: tuple[Tensor, Tensor]
    ) -> None:
        self._network, self._held = network, held
        self._hidden = (held.hidden.float() - spread[0]) / spread[1]
        self._loss = float("inf")
        self.state: dict[str, Tensor] = {}

    @torch.no_grad()
    def offer(self) -> bool:
        """Keep the model as it is now if it is the best so far; return whether it is."""
        logits = self._network(self._hidden, self._held.stats)
        loss = float(_loss(logits, self._held, torch.arange(len(self._held))))
        if not loss < self._loss:
            return False
        self._loss = loss
        self.state = {name: value.clone() for name, value in self._network.state_dict().items()}
        return True


def _loss(logits: Tensor, records: Records, rows: Tensor) -> Tensor:
    """Return the cross-entropy of what became of each position, with the column that it was decoded
    by: a sampled one's statistics and outcome both depend on its noise."""
    is_greedy = records.is_greedy[rows]
    own = torch.where(is_greedy, logits[:, GREEDY], logits[:, SAMPLED])
    return F.binary_cross_entropy_with_logits(own, records.accepted[rows].float())


def _fit_base(network: DecisionNetwork, train: Records) -> None:
    """Fit the logistic regression on the statistics alone, to its only optimum."""
    base = nn.Linear(NUM_STATS, 2)
    with torch.no_grad():
        base.weight.copy_(network.stats.weight[network.width :])
        base.bias.zero_()
    solver = torch.optim.LBFGS(base.parameters(), max_iter=100, line_search_fn="strong_wolfe")
    rows = torch.arange(len(train))

    def loss() -> Tensor:
        solver.zero_grad()
        value = _loss(base(train.stats), train, rows)
        value.backward()
        return value

    solver.step(loss)
    network.set_base(base.weight.detach(), base.bias.detach())
