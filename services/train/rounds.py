"""Records of real rounds: prompts decoded by the engines, and what became of each drafted token.

Chains of the full depth, whatever a policy would do, in exact verification. Knows nothing of
files or of what is learnt.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.client.engine import Engine
from slipstream.core.candidates import ordered_top
from slipstream.core.inline import finished, iterated
from slipstream.core.loop import decode
from slipstream.core.options import MAX_NODES, Mode, SpeculationOptions
from slipstream.core.planner import Planner
from slipstream.core.profile import Profile
from slipstream.core.request import Ask, DraftFacts, make_request
from slipstream.core.round import Round
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import SamplingParams, Shape, StopPolicy
from slipstream.draft.engine import Feed, LocalDraft
from slipstream.draft.slots import law_entropy
from slipstream.models.batched_tokens import Part
from slipstream.models.cache import KvCache
from slipstream.models.decision import slot_stats
from slipstream.models.glide_scorer import GlideScorer
from slipstream.models.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.models.scorer import Ask as ScorerAsk
from slipstream.models.scorer import Scores, Sync
from slipstream.train.records import Records, joined, no_records

_SESSION = "records"


@dataclass(frozen=True, slots=True)
class _Slot:
    """A drafted slot with an accepted path: logits [V_d], hidden [d], its place in the answer."""

    logits: Tensor
    hidden: Tensor
    lag: int
    place: int
    accepted: bool


class TappedScorer:
    """A draft model that remembers the scores of a session's slots in the round, in the order
    drafted."""

    def __init__(self, scorer: GlideScorer) -> None:
        self._scorer = scorer
        self.vocab: Tensor | None = scorer.vocab
        self.hidden_size: int = scorer.hidden_size
        self.layout: KvLayout = scorer.layout
        self.max_lag: int | None = scorer.max_lag
        self.context_length: int | None = scorer.context_length
        self.slots: list[Scores] = []

    def pool(self, num_pages: int) -> KvPool:
        return self._scorer.pool(num_pages)

    def open(self, capacity: int, pool: KvPool | None = None) -> Any:
        return self._scorer.open(capacity, pool)

    def num_same(self, state: Any, tokens: Sequence[int]) -> int:
        return self._scorer.num_same(state, tokens)

    def check(self, ask: ScorerAsk) -> None:
        self._scorer.check(ask)

    def score(self, asks: Sequence[ScorerAsk]) -> Scores:
        scores = self._scorer.score(asks)
        if isinstance(asks[0], Sync):
            self.slots.clear()
        self.slots.append(scores)
        return scores

    def num_bytes(self, state: Any) -> int:
        return self._scorer.num_bytes(state)

    def close(self, state: Any) -> None:
        self._scorer.close(state)


class Recorder:
    """Decodes prompts with one target and one draft, and records what became of the chains."""

    def __init__(self, engine: Engine, scorer: GlideScorer, *, depth: int) -> None:
        """`depth` is how many tokens are drafted per round, the draft's largest lag at most."""
        self._engine = engine
        self._scorer, self._vocab = TappedScorer(scorer), scorer.vocab
        longest = engine.model.context_length + MAX_NODES
        self._draft = LocalDraft(
            self._scorer,
            Feed(engine.target, scorer.config.target_layers),
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
        """The slots of one answer of up to `max_tokens` per sampling; `number` is the prompt's."""
        target = self._engine.target
        cache = self._engine.model.open(len(prompt) + max_tokens)
        self._engine.model.prefill(cache, prompt[:-1])
        parts: list[Records] = []
        for sampling in samplings:
            slots, tokens = self._decoded(prompt, sampling, max_tokens)
            if slots:
                laws = self._laws(cache, tokens, len(prompt))
                parts.append(_records(slots, laws, self._vocab, sampling.is_greedy, number))
        for port in (self._draft, target):
            finished(port.release(_SESSION))
        return joined(parts) if parts else no_records(self._scorer.hidden_size)

    def _decoded(
        self, prompt: Sequence[int], sampling: SamplingParams, max_tokens: int
    ) -> tuple[list[_Slot], list[int]]:
        """The slots of one answer, and its tokens behind those of the prompt."""
        ask = Ask(sampling, max_tokens, speculation=self._speculation)
        request = make_request(_SESSION, prompt, ask, self._engine.facts, self._facts)
        tokens, slots = list(prompt), list[_Slot]()
        sequence, planner = TokenSequence(request.session, prompt), Planner(request.settings)
        rounds = decode(
            self._draft, self._engine.target, planner, sequence, clock=time.perf_counter
        )
        for at in iterated(rounds):
            slots += self._visited(at, len(tokens) - len(prompt))
            tokens += at.verdict.tokens
        return slots, tokens

    def _visited(self, at: Round, place: int) -> list[_Slot]:
        """The round's slots down to the first rejection; the first is at `place` in the answer."""
        slots: list[_Slot] = []
        pairs = zip(at.proposal.tree.tokens, at.verdict.tokens, strict=False)
        for depth, (drafted, final) in enumerate(pairs):
            scores, same = self._scorer.slots[depth], drafted == final
            lag = depth + (at.proposal.staleness or 0)
            slots.append(_Slot(scores.logits[0], scores.hidden[0], lag, place + depth, same))
            if not same:
                break
        return slots

    def _laws(self, cache: KvCache, tokens: Sequence[int], num_prompt: int) -> Tensor:
        """The target's logits [answer, V] of an answer's slots; the cache holds the prompt."""
        model = self._engine.model
        hidden, _ = model.forward([Part(cache, tokens[num_prompt - 1 : -1])])
        return model.logits(hidden).float()


def _records(
    slots: Sequence[_Slot], laws: Tensor, vocab: Tensor, is_greedy: bool, number: int
) -> Records:
    """`laws` [answer, V] are the target's logits, `vocab` [V_d] the ids of the draft's columns."""
    accepted = torch.tensor([slot.accepted for slot in slots])
    target = laws[[slot.place for slot in slots]]
    draft = torch.stack([slot.logits for slot in slots])
    return Records(
        hidden=torch.stack([slot.hidden for slot in slots]).to("cpu", torch.bfloat16),
        stats=torch.tensor([_stats(slot) for slot in slots]),
        accepted=accepted,
        agrees=(target.argmax(-1) == vocab[draft.argmax(-1)]).cpu(),
        overlap=overlap(target, draft, vocab).cpu(),
        is_greedy=torch.full_like(accepted, is_greedy),
        prompt=torch.full(accepted.shape, number),
    )


def _stats(slot: _Slot) -> tuple[float, ...]:
    log_probs = slot.logits.log_softmax(-1)
    best = ordered_top(log_probs, 2)[0].tolist()
    return slot_stats(best, float(law_entropy(log_probs[None])), slot.lag)


def overlap(target: Tensor, draft: Tensor, vocab: Tensor) -> Tensor:
    """The chance that target and draft draw one token when they share their Gumbel noise, [n].

    target [n, V] and draft [n, V_d] are logits, vocab [V_d] the target's id of each column of the
    draft. With laws p and q it is the sum over x of 1 / sum_y max(p_y / p_x, q_y / q_x)
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
