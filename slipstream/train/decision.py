"""Recorder of real rounds, prompts decoded by the engines, and fit of a decision model to them.

Chains have the full depth, whatever a policy would do, in exact verification.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.client.engine import Engine
from slipstream.core.errors import TrainingError, WeightsError
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.policy.planner import Planner
from slipstream.core.policy.profile import DraftFacts, Profile
from slipstream.core.request.request import Ask, make_request
from slipstream.core.round import Round
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import MAX_NODES
from slipstream.core.types import SamplingParams, Shape, StopPolicy
from slipstream.core.verify.noise import Floats
from slipstream.drafting.engine import LocalDraft, TargetKv
from slipstream.drafting.reader import CandidateReader, RowSoftmax
from slipstream.models.decision import GREEDY, NUM_STATS, SAMPLED, DecisionModel, slot_stats
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.scorer import Ask as ScorerAsk
from slipstream.models.scorer import Scorer, Scores, Sync
from slipstream.options import Bounded, option

_SESSION = "records"


Position = tuple[Floats, tuple[float, ...], bool, bool, int]
"""A drafted position with an accepted path: hidden [d], its statistics, whether the round accepted
the token, whether it was greedy, and the number of its prompt."""


@dataclass(frozen=True, slots=True)
class Records:
    """N positions whose path from the round's start was accepted.

    hidden [N, d] bfloat16: the draft's states; stats [N, 4] float32: see `slot_stats`, of the row
    that candidates were ranked by; accepted [N] bool: what the round made of the token;
    is_greedy [N] bool: how the round was decoded; prompt [N] int64: its prompt.
    """

    hidden: Tensor
    stats: Tensor
    accepted: Tensor
    is_greedy: Tensor
    prompt: Tensor

    @property
    def confidence(self) -> Tensor:
        """Return the draft's top-1 probabilities, [N]."""
        return self.stats[:, 0].sigmoid()

    def __len__(self) -> int:
        return len(self.hidden)

    def rows(self, keep: Tensor) -> "Records":
        """Return the positions where `keep` [N] bool holds."""
        return Records(**{name: getattr(self, name)[keep] for name in self.__slots__})


def records_of(positions: Sequence[Position]) -> Records:
    """Return positions as columns; TrainingError where there are none."""
    if not positions:
        raise TrainingError("no drafted token was recorded: there was no time for one")
    hidden, *columns = zip(*positions, strict=True)
    return Records(torch.from_numpy(np.stack(hidden)).bfloat16(), *map(torch.tensor, columns))


class _ScoreRecorder:
    """A draft model that keeps the scores of a session's positions in the round, as drafted."""

    def __init__(self, scorer: GlideScorer) -> None:
        self._scorer = scorer
        self.scores: list[Scores] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def score(self, asks: Sequence[ScorerAsk]) -> Scores:
        scores = self._scorer.score(asks)
        if isinstance(asks[0], Sync):
            self.scores.clear()
        self.scores.append(scores)
        return scores


class RoundRecorder:
    """Recorder of the chains of one target and one draft."""

    def __init__(self, engine: Engine, scorer: GlideScorer, *, depth: int) -> None:
        """`depth` is how many tokens are drafted per round, the draft's largest lag at most."""
        self._engine = engine
        self._scorer, self._recorded = scorer, _ScoreRecorder(scorer)
        longest = engine.model.context_length + MAX_NODES
        self._draft = LocalDraft(
            cast(Scorer, self._recorded),
            TargetKv(engine.target, scorer.layers),
            pool=scorer.pool(round_up(longest, BLOCK_SIZE) // BLOCK_SIZE),
        )
        self._facts = DraftFacts("glide", Profile(), max_lag=scorer.max_lag)
        self._speculation = SpeculationOptions(
            mode=Mode.FORCED, shape=Shape.CHAIN, stop=StopPolicy.FIXED, max_draft_tokens=depth
        )

    def record(
        self,
        prompt: Sequence[int],
        samplings: Sequence[SamplingParams],
        *,
        max_tokens: int,
        number: int,
    ) -> Iterator[Position]:
        """Yield the positions of an answer per sampling to prompt `number`."""
        for sampling in samplings:
            ask = Ask(sampling, max_tokens, speculation=self._speculation)
            request = make_request(_SESSION, prompt, ask, self._engine.facts, self._facts)
            reader = CandidateReader(request.session, self._scorer.vocab)
            num_tokens, planner = len(prompt), Planner(request.settings)
            sequence, target = TokenSequence(request.session, prompt), self._engine.target
            rounds = decode(self._draft, target, planner, sequence, clock=time.perf_counter)
            for round_ in iterated(rounds):
                for hidden, stats, is_accepted in self._visited(round_, reader, num_tokens):
                    yield hidden, stats, is_accepted, sampling.is_greedy, number
                num_tokens += len(round_.verdict.tokens)
        for port in (self._draft, self._engine.target):
            finished(port.release(_SESSION))

    def _visited(
        self, round_: Round, reader: CandidateReader, num_tokens: int
    ) -> Iterator[tuple[Floats, tuple[float, ...], bool]]:
        """Yield the positions to the first rejection of a round behind so many tokens: states,
        statistics and whether each was accepted."""
        pairs = zip(round_.proposal.tree.tokens, round_.verdict.tokens, strict=False)
        for depth, (drafted, final) in enumerate(pairs):
            scores = self._recorded.scores[depth]
            softmax = RowSoftmax(reader.ranked(scores.logits[0], num_tokens + depth)[None])
            lag = depth + (round_.proposal.staleness or 0)
            stats = slot_stats(softmax.best_two(0), float(softmax.entropies[0]), lag)
            yield scores.hidden[0], stats, drafted == final
            if drafted != final:
                return


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
