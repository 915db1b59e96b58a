"""A whole chain of drafts on the device: every step, candidate and decision to stop.

One function of static tensors for B sessions: their new tokens go through the draft together, then
one token of each at a time, to a fixed depth. A chain that has ended is computed on to the end and
not counted. No value is read on the host, so that the function can be captured whole; what it
needs and gives are single vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.models.cuda.draws import perturbed, top_by_key
from slipstream.models.decision import GREEDY, LEAST, SAMPLED
from slipstream.models.glide.chain_stop import (
    ChainEnds,
    ChainScores,
    Confidence,
    DecisionNetwork,
    Rules,
    device_stats,
)
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.glide_torch import (
    DraftKeys,
    DraftTokens,
    Pair,
    TorchGlide,
    at_positions,
)
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool
from slipstream.models.scorer import NUM_SINKS
from slipstream.models.torch.paged import gather, page_slots

MAX_ENDS = 8
"""Tokens that nothing can follow, a chain at most."""
NUM_SINGLE = 11


@dataclass(frozen=True, slots=True, order=True)
class ChainShape:
    """One shape of chains: `sessions` of up to `rows` new tokens each, `depth` steps, `width` own
    positions, `seen` of the target's, `candidates` a slot, `points` of a calibration."""

    sessions: int
    rows: int
    depth: int
    width: int
    seen: int
    candidates: int
    points: int
    is_sampled: bool
    is_scored: bool

    def input_sizes(self) -> list[int]:
        """Return the sizes of a session's parts of the integers: single ones, then the others of
        `ChainInputs`."""
        noise = 2 * self.depth if self.is_sampled else 0
        return [NUM_SINGLE, self.rows, MAX_ENDS, self.width // BLOCK_SIZE, noise]

    @property
    def num_outputs(self) -> int:
        """Numbers of a session's slot: entropy, top probability, score, candidates and their
        probabilities."""
        return 3 + 2 * self.candidates


@dataclass(frozen=True, slots=True)
class ChainInputs:
    """Integers of B sessions before their chains: single ones [B], then rows [B, n] of them."""

    skipped: Tensor
    leads: Tensor
    starts: Tensor
    counts: Tensor
    num_seen: Tensor
    lags: Tensor
    limits: Tensor
    policies: Tensor
    max_depths: Tensor
    num_points: Tensor
    asks_score: Tensor
    tokens: Tensor
    ends: Tensor
    pages: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True)
class ChainModel:
    """A `draft`, the rotary factors of its chains' positions, and its decision model."""

    draft: TorchGlide
    rope: Rope
    decision: DecisionNetwork | None = None


class ChainBody:
    """The function of one shape over one pool and the staged keys of the target: `others` as in
    `DraftKeys`, filled before a run."""

    def __init__(
        self, model: ChainModel, shape: ChainShape, pool: KvPool, others: Sequence[Pair]
    ) -> None:
        self._model = model
        self._shape = shape
        self._pool = pool
        self._others = others

    def __call__(self, integers: Tensor, doubles: Tensor) -> tuple[Tensor]:
        """Return [B, depth * num_outputs + 2] float64: slots, then the chain's length and why it
        ended. `integers` and `doubles` [B, n] are what `GlideChains` packs."""
        shape = self._shape
        singles, *rows = integers.split(shape.input_sizes(), 1)
        given = ChainInputs(*singles.unbind(1), *rows)
        heat, *limits = doubles[:, :4].unbind(1)
        rules = Rules(given.policies, given.max_depths, *limits)
        confidence = Confidence(doubles[:, 4:], given.num_points)
        ends = ChainEnds(given.limits, given.ends, rules, confidence)
        hidden, keys = self._begin(given)
        slots, tokens = [], given.tokens[:, 0]
        for depth in range(1, shape.depth + 1):
            if depth > 1:
                hidden = self._go_on(given, keys, tokens, depth)
            slot = self._read(given, heat, hidden, depth)
            slots.append(slot.numbers())
            ends.count(slot, depth)
            tokens = slot.tokens[:, 0]
        lengths = torch.stack([ends.lengths, ends.reasons], 1).double()
        return (torch.cat([*slots, lengths], 1),)

    def _begin(self, given: ChainInputs) -> tuple[Tensor, DraftKeys]:
        """Return states [B, d] behind the tokens that are given, and the keys with theirs."""
        num, rows, draft = self._shape.sessions, self._shape.rows, self._model.draft
        table = page_slots(given.pages)
        layers = [self._pool.layer(index) for index in range(len(draft.layers))]
        own = [gather(layer, table.flatten(), num) for layer in layers]
        keys = DraftKeys(own, self._others, given.num_seen.unsqueeze(1), self._pool)
        steps = torch.arange(rows, device=table.device)
        # Padding repeats a session's first new token.
        steps = torch.where(steps < given.counts.unsqueeze(1), steps, 0)
        columns = given.starts.unsqueeze(1) + steps
        last = torch.arange(num, device=table.device) * rows + given.counts - 1
        tokens = DraftTokens(
            given.tokens.gather(1, steps).flatten(),
            columns,
            self._rope(given, columns),
            table.gather(1, columns).flatten(),
            last,
            lead=given.leads[:, None],
        )
        return draft.states(keys, tokens), keys

    def _go_on(self, given: ChainInputs, keys: DraftKeys, ids: Tensor, depth: int) -> Tensor:
        """Return states [B, d] behind the tokens [B] at the depth before."""
        columns = (given.starts + given.counts + (depth - 2)).unsqueeze(1)
        tokens = DraftTokens(ids, columns, self._rope(given, columns), lead=given.leads[:, None])
        return self._model.draft.states(keys, tokens)

    def _rope(self, given: ChainInputs, columns: Tensor) -> Rope:
        skipped = torch.where(columns < NUM_SINKS, 0, given.skipped.unsqueeze(1))
        return at_positions(self._model.rope, (columns + skipped).flatten())

    def _read(self, given: ChainInputs, heat: Tensor, hidden: Tensor, depth: int) -> ChainScores:
        """Return the slot behind states [B, d]."""
        shape, model = self._shape, self._model
        ranked = model.draft.logits(hidden).float()
        if shape.is_sampled:
            keys = given.noise[:, 2 * depth - 2 : 2 * depth].to(torch.int32)
            ranked = perturbed(ranked, heat.float(), keys, model.draft.vocab, sharpness=SHARPNESS)
        log_probs = torch.log_softmax(ranked, -1)
        entropies = -torch.linalg.vecdot(log_probs.exp(), log_probs.clamp(min=LEAST))
        tops = log_probs.topk(2).values
        columns = top_by_key(ranked, shape.candidates)[1]
        scores = torch.full_like(heat, float("nan"))
        if shape.is_scored and model.decision is not None:
            stats = device_stats(tops, entropies, given.lags + (depth - 1))
            probs = model.decision(hidden, stats).sigmoid().double()
            own = torch.where(heat == 0, probs[:, GREEDY], probs[:, SAMPLED])
            scores = torch.where(given.asks_score > 0, own, scores)
        return ChainScores(
            tokens=model.draft.vocab[columns],
            probs=log_probs.gather(1, columns).exp(),
            entropies=entropies.double(),
            top_probs=tops[:, 0].exp().double(),
            scores=scores,
        )
