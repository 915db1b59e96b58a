"""A whole chain of drafts on the device: every step, candidate and decision to stop.

One function of static tensors for B sessions: their new tokens go through the draft together, then
one token of each at a time, to a fixed depth. A chain that has ended is computed on to the end and
not counted. No value is read on the host, so that the function can be captured whole; what it
needs and gives are single vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
from slipstream.models.glide.glide_packed import DraftAttention, GlideParts
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool
from slipstream.models.scorer import NUM_SINKS
from slipstream.models.torch.paged import additive, gather, page_slots

MAX_ENDS = 8
"""Tokens that nothing can follow, a chain at most."""


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
        """Return the sizes of the parts of the integers, in the order of `ChainInputs`."""
        num = self.sessions
        noise = 2 * self.depth * num if self.is_sampled else 0
        pages = num * (self.width // BLOCK_SIZE)
        return [num * self.rows, *[num] * 10, num * MAX_ENDS, pages, noise]

    @property
    def num_outputs(self) -> int:
        """Numbers of a session's slot: entropy, top probability, score, candidates and their
        probabilities."""
        return 3 + 2 * self.candidates


@dataclass(frozen=True, slots=True)
class ChainInputs:
    """Integers of B sessions before their chains, in parts of the sizes of `input_sizes`."""

    tokens: Tensor
    skipped: Tensor
    starts: Tensor
    counts: Tensor
    num_seen: Tensor
    lags: Tensor
    limits: Tensor
    policies: Tensor
    max_depths: Tensor
    num_points: Tensor
    asks_score: Tensor
    ends: Tensor
    pages: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True)
class ChainModel:
    """The draft's `parts`; `vocab` [V_d] are its columns' tokens, `group` query heads share a key
    head."""

    parts: GlideParts
    vocab: Tensor
    group: int
    decision: DecisionNetwork | None = None


@dataclass(frozen=True, slots=True)
class _Columns:
    """Tokens at `columns` [B, N], of which those at `kept_columns` [B, M], the `kept`, go on.

    They are written to the pool's `slots` [B * N], if to any; `is_last`: no layer follows whose
    keys need all of them.
    """

    columns: Tensor
    kept_columns: Tensor
    slots: Tensor | None = None
    kept: Tensor | None = None
    is_last: bool = True


class ChainBody:
    """The function of one shape over one pool and the staged keys of the target: `others`, per
    target layer that is read [B, 2 * kv_heads, seen, head_dim], filled before a run."""

    def __init__(
        self, model: ChainModel, shape: ChainShape, pool: KvPool, others: Sequence[Tensor]
    ) -> None:
        self._model = model
        self._shape = shape
        self._pool = pool
        self._others = others

    def __call__(self, integers: Tensor, doubles: Tensor) -> tuple[Tensor]:
        """Return [B, depth * num_outputs + 2] float64: slots, then the chain's length and why it
        ended. `integers` and `doubles` are the vectors that `GlideChains` packs."""
        shape, num = self._shape, self._shape.sessions
        given = ChainInputs(*integers.split(shape.input_sizes()))
        singles, points = doubles.split([4 * num, num * shape.points])
        heat, *limits = singles.view(4, num)
        rules = Rules(given.policies, given.max_depths, *limits)
        confidence = Confidence(points.view(num, -1), given.num_points)
        ends = ChainEnds(given.limits, given.ends.view(num, -1), rules, confidence)
        hidden, own = self._begin(given)
        slots, tokens = [], given.tokens[:num]
        for depth in range(1, shape.depth + 1):
            if depth > 1:
                hidden = self._go_on(given, own, tokens, depth)
            slot = self._read(given, heat, hidden, depth)
            slots.append(slot.numbers())
            ends.count(slot, depth)
            tokens = slot.tokens[:, 0]
        lengths = torch.stack([ends.lengths, ends.reasons], 1).double()
        return (torch.cat([*slots, lengths], 1),)

    def _begin(self, given: ChainInputs) -> tuple[Tensor, list[Tensor]]:
        """Return states behind the last new tokens [B, d], and the dense keys of each layer."""
        shape, model = self._shape, self._model
        num, rows = shape.sessions, shape.rows
        table = page_slots(given.pages.view(num, -1))
        *earlier, final = model.parts.layers
        own = [
            gather(self._pool.layer(index), table.flatten(), num).clone()
            for index in range(len(model.parts.layers))
        ]
        steps = torch.arange(rows, device=table.device)
        # Padding repeats a session's first new token.
        steps = torch.where(steps < given.counts.unsqueeze(1), steps, 0)
        columns = given.starts.unsqueeze(1) + steps
        slots = table.gather(1, columns).flatten()
        x = model.parts.embeddings[given.tokens.view(num, rows).gather(1, steps).flatten()]
        attention = self._attention(given, own, _Columns(columns, columns, slots, is_last=False))
        for index, layer in enumerate(earlier):
            x = layer(x, index, attention)
        ends = (given.starts + given.counts - 1).unsqueeze(1)
        last = torch.arange(num, device=table.device) * rows + given.counts - 1
        attention = self._attention(given, own, _Columns(columns, ends, slots, last))
        return model.parts.norm(final(x, len(earlier), attention)), own

    def _go_on(
        self, given: ChainInputs, own: Sequence[Tensor], tokens: Tensor, depth: int
    ) -> Tensor:
        """Return states [B, d] behind the tokens [B] at the depth before."""
        columns = (given.starts + given.counts + (depth - 2)).unsqueeze(1)
        x = self._model.parts.embeddings[tokens]
        attention = self._attention(given, own, _Columns(columns, columns))
        for index, layer in enumerate(self._model.parts.layers):
            x = layer(x, index, attention)
        return self._model.parts.norm(x)

    def _attention(
        self, given: ChainInputs, own: Sequence[Tensor], place: _Columns
    ) -> DraftAttention:
        shape, model = self._shape, self._model
        columns, kept_columns = place.columns, place.kept_columns
        num_seen = given.num_seen.unsqueeze(1)
        limits = torch.minimum(num_seen, kept_columns)
        if not place.is_last:  # position 0 has nothing before it; training lets it read itself
            limits = torch.where(kept_columns == 0, num_seen.clamp(max=1), limits)
        device, dtype = columns.device, model.parts.embeddings.dtype
        visible = torch.arange(shape.width, device=device) <= kept_columns.unsqueeze(2)
        read = torch.arange(shape.seen, device=device) < limits.unsqueeze(2)
        skipped = torch.where(columns < NUM_SINKS, 0, given.skipped.unsqueeze(1))
        return DraftAttention(
            own=own,
            columns=columns,
            store_in=None if place.slots is None else (self._pool, place.slots),
            own_mask=additive(visible, model.group, dtype),
            others=self._others,
            others_mask=additive(read, model.group, dtype),
            reading=limits.view(-1, 1) > 0,
            rotation=model.parts.rotation.at((columns + skipped).flatten()),
            kept=place.kept,
        )

    def _read(self, given: ChainInputs, heat: Tensor, hidden: Tensor, depth: int) -> ChainScores:
        """Return the slot behind states [B, d]."""
        shape, model = self._shape, self._model
        ranked = F.linear(hidden, model.parts.head).float()
        if shape.is_sampled:
            keys = given.noise.view(shape.depth, -1, 2)[depth - 1].to(torch.int32)
            ranked = perturbed(ranked, heat.float(), keys, model.vocab, sharpness=SHARPNESS)
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
            tokens=model.vocab[columns],
            probs=log_probs.gather(1, columns).exp(),
            entropies=entropies.double(),
            top_probs=tops[:, 0].exp().double(),
            scores=scores,
        )
