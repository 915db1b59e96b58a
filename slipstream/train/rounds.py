"""Recorder of real rounds: prompts decoded by the engines, and the outcome of drafted tokens.

Chains have the full depth, whatever a policy would do, in exact verification.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from slipstream.client.engine import Engine
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
from slipstream.train.records import Records, joined, no_records

_SESSION = "records"


@dataclass(frozen=True, slots=True)
class _Position:
    """A drafted position with an accepted path: hidden [d], and its statistics."""

    hidden: Floats
    stats: tuple[float, ...]
    accepted: bool


class _ScoreRecorder:
    """A draft model that keeps the scores of a session's positions in the round, as drafted."""

    def __init__(self, scorer: GlideScorer) -> None:
        self._scorer = scorer
        self.scores: list[Scores] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scorer, name)

    def score(self, asks: Sequence[ScorerAsk]) -> Scores:
        """See `Scorer.score`."""
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
            TargetKv(engine.target, scorer.config.target_layers),
            pool=scorer.pool(round_up(longest, BLOCK_SIZE) // BLOCK_SIZE),
        )
        self._facts = DraftFacts("glide", Profile(), max_lag=scorer.max_lag)
        self._speculation = SpeculationOptions(
            mode=Mode.FORCED,
            shape=Shape.CHAIN,
            stop=StopPolicy.FIXED,
            max_draft_tokens=depth,
        )

    def record(
        self,
        prompt: Sequence[int],
        samplings: Sequence[SamplingParams],
        *,
        max_tokens: int,
        number: int,
    ) -> Records:
        """Return the positions of an answer per sampling to prompt `number`."""
        parts: list[Records] = []
        for sampling in samplings:
            if positions := self._decoded(prompt, sampling, max_tokens):
                parts.append(_records(positions, sampling.is_greedy, number))
        for port in (self._draft, self._engine.target):
            finished(port.release(_SESSION))
        return joined(parts) if parts else no_records(self._scorer.hidden_size)

    def _decoded(
        self, prompt: Sequence[int], sampling: SamplingParams, max_tokens: int
    ) -> list[_Position]:
        """Return the positions of one answer."""
        ask = Ask(sampling, max_tokens, speculation=self._speculation)
        request = make_request(_SESSION, prompt, ask, self._engine.facts, self._facts)
        reader = CandidateReader(request.session, self._scorer.vocab)
        num_tokens, positions = len(prompt), list[_Position]()
        sequence, planner = TokenSequence(request.session, prompt), Planner(request.settings)
        rounds = decode(
            self._draft, self._engine.target, planner, sequence, clock=time.perf_counter
        )
        for round_ in iterated(rounds):
            positions += self._visited(round_, reader, num_tokens)
            num_tokens += len(round_.verdict.tokens)
        return positions

    def _visited(self, round_: Round, reader: CandidateReader, num_tokens: int) -> list[_Position]:
        """Return the positions to the first rejection of a round behind so many tokens."""
        positions: list[_Position] = []
        pairs = zip(round_.proposal.tree.tokens, round_.verdict.tokens, strict=False)
        for depth, (drafted, final) in enumerate(pairs):
            scores, same = self._recorded.scores[depth], drafted == final
            softmax = RowSoftmax(reader.ranked(scores.logits[0], num_tokens + depth)[None])
            lag = depth + (round_.proposal.staleness or 0)
            stats = slot_stats(softmax.best_two(0), float(softmax.entropies[0]), lag)
            positions.append(_Position(scores.hidden[0], stats, same))
            if not same:
                break
        return positions


def _records(positions: Sequence[_Position], is_greedy: bool, number: int) -> Records:
    accepted = torch.tensor([position.accepted for position in positions])
    return Records(
        hidden=torch.from_numpy(np.stack([position.hidden for position in positions])).bfloat16(),
        stats=torch.tensor([position.stats for position in positions]),
        accepted=accepted,
        is_greedy=torch.full_like(accepted, is_greedy),
        prompt=torch.full(accepted.shape, number),
    )
