"""Recorder of real rounds: prompts decoded by the engines, and the outcome of drafted tokens.

Chains have the full depth, whatever a policy would do, in exact verification.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from slipstream.client.engine import Engine
from slipstream.core.errors import TrainingError
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
from slipstream.models.decision import slot_stats
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.scorer import Ask as ScorerAsk
from slipstream.models.scorer import Scorer, Scores, Sync

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
