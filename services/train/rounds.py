"""Recorder of real rounds: prompts decoded by the engines, and the outcome of drafted tokens.

Chains have the full depth, whatever a policy would do, in exact verification.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from slipstream.client.engine import Engine
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.policy.planner import Planner
from slipstream.core.request.options import MAX_NODES, Mode, SpeculationOptions
from slipstream.core.request.profile import Profile
from slipstream.core.request.request import Ask, DraftFacts, make_request
from slipstream.core.round import Round
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import SamplingParams, Shape, StopPolicy
from slipstream.core.verify.noise import Floats
from slipstream.draft.engine import LocalDraft, TargetKv
from slipstream.draft.reader import RowSoftmax
from slipstream.models.decision import slot_stats
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.scorer import Ask as ScorerAsk
from slipstream.models.scorer import Scorer, Scores, Sync
from slipstream.models.target.token_layout import Part
from slipstream.models.torch_arrays import as_tensor
from slipstream.train.records import Records, joined, no_records

_SESSION = "records"


@dataclass(frozen=True, slots=True)
class _Position:
    """A drafted position with an accepted path: logits [V_d], hidden [d], place in the answer."""

    logits: Floats
    hidden: Floats
    lag: int
    place: int
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
        target = self._engine.target
        cache = self._engine.model.open(len(prompt) + max_tokens)
        self._engine.model.prefill(cache, prompt[:-1])
        parts: list[Records] = []
        for sampling in samplings:
            positions, tokens = self._decoded(prompt, sampling, max_tokens)
            if positions:
                logits = self._logits(cache, tokens, len(prompt))
                vocab = torch.from_numpy(self._scorer.vocab)
                parts.append(_records(positions, logits, vocab, sampling.is_greedy, number))
        for port in (self._draft, target):
            finished(port.release(_SESSION))
        return joined(parts) if parts else no_records(self._scorer.hidden_size)

    def _decoded(
        self, prompt: Sequence[int], sampling: SamplingParams, max_tokens: int
    ) -> tuple[list[_Position], list[int]]:
        """Return the positions of one answer, and its tokens behind those of the prompt."""
        ask = Ask(sampling, max_tokens, speculation=self._speculation)
        request = make_request(_SESSION, prompt, ask, self._engine.facts, self._facts)
        tokens, positions = list(prompt), list[_Position]()
        sequence, planner = TokenSequence(request.session, prompt), Planner(request.settings)
        rounds = decode(
            self._draft, self._engine.target, planner, sequence, clock=time.perf_counter
        )
        for at in iterated(rounds):
            positions += self._visited(at, len(tokens) - len(prompt))
            tokens += at.verdict.tokens
        return positions, tokens

    def _visited(self, at: Round, place: int) -> list[_Position]:
        """Return the round's positions to the first rejection, from `place` in the answer on."""
        positions: list[_Position] = []
        pairs = zip(at.proposal.tree.tokens, at.verdict.tokens, strict=False)
        for depth, (drafted, final) in enumerate(pairs):
            scores, same = self._recorded.scores[depth], drafted == final
            lag = depth + (at.proposal.staleness or 0)
            positions.append(
                _Position(scores.logits[0], scores.hidden[0], lag, place + depth, same)
            )
            if not same:
                break
        return positions

    def _logits(self, cache: KvCache, tokens: Sequence[int], num_prompt: int) -> Tensor:
        """Return the target's logits [answer, V] of an answer; the cache holds the prompt."""
        model = self._engine.model
        hidden, _ = model.forward([Part(cache, tokens[num_prompt - 1 : -1])])
        return as_tensor(model.logits(hidden)).float()


def _records(
    positions: Sequence[_Position], logits: Tensor, vocab: Tensor, is_greedy: bool, number: int
) -> Records:
    """Return records from the target's logits [answer, V] and the draft's ids `vocab` [V_d]."""
    accepted = torch.tensor([at.accepted for at in positions])
    target = logits[[at.place for at in positions]]
    draft = torch.from_numpy(np.stack([at.logits for at in positions]))
    return Records(
        hidden=torch.from_numpy(np.stack([at.hidden for at in positions])).bfloat16(),
        stats=torch.tensor([_stats(at) for at in positions]),
        accepted=accepted,
        agrees=target.argmax(-1) == vocab[draft.argmax(-1)],
        overlap=overlap(target, draft, vocab),
        is_greedy=torch.full_like(accepted, is_greedy),
        prompt=torch.full(accepted.shape, number),
    )


def _stats(at: _Position) -> tuple[float, ...]:
    softmax = RowSoftmax(at.logits[None])
    return slot_stats(softmax.best_two(0), float(softmax.entropies[0]), at.lag)


def overlap(target: Tensor, draft: Tensor, vocab: Tensor) -> Tensor:
    """Return the probability that both draw one token when they share their Gumbel noise, [n].

    target [n, V] and draft [n, V_d] are logits, vocab [V_d] the target's id of each column of the
    draft. With distributions p and q it is the sum over x of 1 / sum_y max(p_y / p_x, q_y / q_x)
    ("Maximally Consistent Sampling", Moulton and Jiang 2018), here by one sort of p / q.
    """
    p, q = target.double().softmax(-1), draft.double().softmax(-1)
    p = p[:, vocab]
    order = (p / q).argsort(dim=-1, descending=True)
    p, q = p.gather(-1, order), q.gather(-1, order)
    outside = (1 - p.sum(-1, keepdim=True)).clamp_min(0)  # infinitely likelier to the target
    above = outside + p.cumsum(-1)
    below = (q.sum(-1, keepdim=True) - q.cumsum(-1)).clamp_min(0)
    shares = p * q / (above * q + below * p)
    return shares.nan_to_num(0.0).sum(-1).clamp(0, 1).float()
