"""What the draft makes of one slot: candidates in order, probabilities, entropy, and the law.

Candidates of `exact` verification are the best of the draft's law perturbed with the target's
own noise, those of `mcsd` are draws. Probabilities and entropy are always those of the raw
law at temperature 1, which the stop rules and CaPE were calibrated on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.core.candidates import (
    coupled,
    draw_with_replacement,
    draw_without_replacement,
    ordered_top,
    sparse_law,
)
from slipstream.core.laws import LawContext
from slipstream.core.types import NodeStats, Session, SparseLaw, Verification
from slipstream.models.decision import GREEDY, SAMPLED, slot_stats

LAW_SIZE = 64
"""Tokens of the truncated law that multi-candidate sampling draws from."""


Score = Callable[[Tensor, Tensor], Tensor]
"""`DecisionModel.score`: hidden states [R, d] and `slot_stats` [R, 4] to chances [R, 2]."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot as the draft sees it; `tokens` are candidates, best or first drawn first."""

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    top_prob: float
    entropy: float
    score: float | None = None
    law: SparseLaw | None = None

    def stats(self, token: int) -> NodeStats:
        """Statistics of the node that carries `token` in this slot."""
        prob = self.probs[self.tokens.index(token)]
        return NodeStats(self.top_prob, prob, self.entropy, self.score)


class SlotReader:
    """Reads slots for one request. `vocab` [V_d] maps the draft's columns to token ids."""

    def __init__(
        self,
        session: Session,
        vocab: Tensor | None,
        score: Score | None = None,
    ) -> None:
        self._session = session
        self._vocab = vocab
        self._score = score
        self._chance = GREEDY if session.sampling.is_greedy else SAMPLED
        sampling = session.sampling
        # Penalties and bias are the target's business: they would need the whole vocabulary.
        law = replace(
            sampling,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            logit_bias=(),
        )
        self._laws = LawContext(law, session.num_prompt_tokens)

    def read(self, scores: tuple[Tensor, Tensor], *, position: int, lag: int, count: int) -> Slot:
        """The slot at `position` with `count` candidates; scores are logits [V_d] fp32, hidden [d].

        `lag` is its distance to the newest target key.
        """
        logits, hidden = scores
        log_probs = torch.log_softmax(logits, -1)
        entropy = law_entropy(log_probs)
        columns, tokens, law = self._candidates(logits, position, count)
        parts = [entropy.view(1), log_probs.max().exp().view(1), log_probs[columns].exp()]
        if self._score is not None:
            parts.append(ordered_top(log_probs, 2)[0])
        numbers = torch.cat(parts).tolist()
        score = None
        if self._score is not None:
            stats = slot_stats(numbers[-2:], numbers[0], lag)
            row = torch.tensor([stats], device=hidden.device)
            score = float(self._score(hidden[None], row)[0, self._chance])
        probs = tuple(numbers[2 : 2 + len(tokens)])
        return Slot(tokens, probs, numbers[1], numbers[0], score, law)

    def _candidates(
        self, logits: Tensor, position: int, count: int
    ) -> tuple[Tensor, tuple[int, ...], SparseLaw | None]:
        """Columns [count], their token ids, and the law they were drawn from, if they were."""
        session = self._session
        needs_law = session.verification in (Verification.MCSD, Verification.MCSD_REPLACEMENT)
        if session.sampling.is_greedy or session.verification is Verification.EXACT:
            columns = self._best(logits, position, count)
            # A greedy target accepts its own token whatever the law, but wants to be told one.
            law = self._named(sparse_law(logits, max(LAW_SIZE, count))) if needs_law else None
            return columns, self._ids(columns), law
        return self._drawn(logits, position, count)

    def _best(self, logits: Tensor, position: int, count: int) -> Tensor:
        sampling = self._session.sampling
        if sampling.is_greedy:
            return ordered_top(logits, count)[1]
        scores, columns = self._laws.support(logits, ())
        ids = self._ids_of(columns, logits)
        noisy = coupled(scores, sampling.seed, position=position, ids=ids)
        best = ordered_top(noisy, count)[1]
        return best if columns is None else columns[best]

    def _drawn(
        self, logits: Tensor, position: int, count: int
    ) -> tuple[Tensor, tuple[int, ...], SparseLaw]:
        law = sparse_law(self._laws.scores(logits, ()), LAW_SIZE)
        is_repeating = self._session.verification is Verification.MCSD_REPLACEMENT
        draw = draw_with_replacement if is_repeating else draw_without_replacement
        named = self._named(law)
        tokens = draw(named, count, seed=self._session.sampling.seed, position=position)
        column_of = dict(zip(named.tokens, law.tokens, strict=True))
        columns = torch.tensor([column_of[token] for token in tokens], device=logits.device)
        return columns, tokens, named

    def _named(self, law: SparseLaw) -> SparseLaw:
        columns = torch.tensor(law.tokens, dtype=torch.long)
        return SparseLaw(self._ids(columns), law.probs)

    def _ids(self, columns: Tensor) -> tuple[int, ...]:
        ids = columns if self._vocab is None else self._vocab[columns]
        return tuple(ids.tolist())

    def _ids_of(self, columns: Tensor | None, logits: Tensor) -> Tensor | int:
        if columns is None:
            return logits.shape[0] if self._vocab is None else self._vocab
        return columns if self._vocab is None else self._vocab[columns]


def law_entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of the law with these logarithms [V_d], a scalar."""
    return -torch.dot(log_probs.exp(), log_probs)
