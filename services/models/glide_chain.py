"""A whole chain of drafts on the device: every step, candidate and decision to stop.

One function of static tensors for B sessions: their new tokens go through the draft together, then
one token of each at a time, to a fixed depth. A chain that has ended is computed on to the end
and not counted, because to stop early somebody would have to look. Nothing here looks at a value
on the host, so that it can be captured whole; what it needs and gives are single vectors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.candidates import top_by_key
from slipstream.core.draws import perturbed
from slipstream.models.chain_seats import ChainSeats
from slipstream.models.chain_shape import ChainInputs, ChainShape, fields
from slipstream.models.chain_stop import (
    AT_END,
    AT_LIMIT,
    BY_POLICY,
    GOES_ON,
    Confidence,
    Rules,
    Signals,
    should_stop,
)
from slipstream.models.decision import GREEDY, LEAST, SAMPLED, device_stats
from slipstream.models.glide_packed import GlideParts, Rotation
from slipstream.models.paged import additive, gather, page_slots
from slipstream.models.pool import KvPool


@dataclass(frozen=True, slots=True)
class ChainModel:
    """The draft's `parts`; `vocab` [V_d] are its columns' tokens, `group` query heads share a key
    head, `score` is the decision model's."""

    parts: GlideParts
    vocab: Tensor
    group: int
    score: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot of B chains."""

    tokens: Tensor
    probs: Tensor
    entropies: Tensor
    top_probs: Tensor
    scores: Tensor

    def numbers(self) -> Tensor:
        """[B, num_outputs] float64, which holds floats and ids as they are."""
        singles = torch.stack([self.entropies, self.top_probs, self.scores], 1)
        return torch.cat([singles, self.tokens.double(), self.probs.double()], 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows at `columns` [B, N], of which those at `kept_columns` [B, M], the rows `kept`, go on.

    They are written to the pool's `slots` [B * N], if to any; `is_last` says that no layer follows
    whose keys need all of them.
    """

    columns: Tensor
    kept_columns: Tensor
    slots: Tensor | None = None
    kept: Tensor | None = None
    is_last: bool = True


class ChainBody:
    """The function of one shape over one pool and the staged keys of the target.

    `others`: per target layer that is read [B, 2 * kv_heads, seen, head_dim], filled before a run.
    """

    def __init__(
        self, model: ChainModel, shape: ChainShape, pool: KvPool, others: Sequence[Tensor]
    ) -> None:
        self._model = model
        self._shape = shape
        self._pool = pool
        self._others = others

    def __call__(self, integers: Tensor, doubles: Tensor) -> tuple[Tensor]:
        """[B, depth * num_outputs + 2] float64: slots, then the chain's length and why it ended.

        `integers` and `doubles` are the vectors that `chaining.py` packs.
        """
        shape, num = self._shape, self._shape.sessions
        given = ChainInputs(*integers.split(list(fields(shape))))
        singles, points = doubles.split([4 * num, num * shape.points])
        heat, *limits = singles.view(4, num)
        rules = Rules(given.policies, given.max_depths, *limits)
        confidence = Confidence(points.view(num, -1), given.num_points)
        ending = _Ending(given, rules, confidence)
        hidden, own = self._begin(given)
        slots, tokens = [], given.tokens[:num]
        for depth in range(1, shape.depth + 1):
            if depth > 1:
                hidden = self._go_on(given, own, tokens, depth)
            slot = self._read(given, heat, hidden, depth)
            slots.append(slot.numbers())
            ending.take(slot, depth)
            tokens = slot.tokens[:, 0]
        ends = torch.stack([ending.lengths, ending.reasons], 1).double()
        return (torch.cat([*slots, ends], 1),)

    def _begin(self, given: ChainInputs) -> tuple[Tensor, list[Tensor]]:
        """States behind the last new tokens [B, d], and the dense keys of each layer."""
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
        seats = self._seats(given, own, _Place(columns, columns, slots, is_last=False))
        for index, layer in enumerate(earlier):
            x = layer(x, index, seats)
        ends = (given.starts + given.counts - 1).unsqueeze(1)
        last = torch.arange(num, device=table.device) * rows + given.counts - 1
        seats = self._seats(given, own, _Place(columns, ends, slots, last))
        return model.parts.norm(final(x, len(earlier), seats)), own

    def _go_on(
        self, given: ChainInputs, own: Sequence[Tensor], tokens: Tensor, depth: int
    ) -> Tensor:
        """States [B, d] behind the tokens [B] at the depth before."""
        columns = (given.starts + given.counts + (depth - 2)).unsqueeze(1)
        x = self._model.parts.embeddings[tokens]
        seats = self._seats(given, own, _Place(columns, columns))
        for index, layer in enumerate(self._model.parts.layers):
            x = layer(x, index, seats)
        return self._model.parts.norm(x)

    def _seats(self, given: ChainInputs, own: Sequence[Tensor], place: "_Place") -> ChainSeats:
        shape, model = self._shape, self._model
        columns, kept_columns = place.columns, place.kept_columns
        num_seen = given.num_seen.unsqueeze(1)
        limits = torch.minimum(num_seen, kept_columns)
        if not place.is_last:  # position 0 has nothing before it; training lets it read itself
            limits = torch.where(kept_columns == 0, num_seen.clamp(max=1), limits)
        device, dtype = columns.device, model.parts.embeddings.dtype
        visible = torch.arange(shape.width, device=device) <= kept_columns.unsqueeze(2)
        read = torch.arange(shape.seen, device=device) < limits.unsqueeze(2)
        at = columns.flatten()
        return ChainSeats(
            own=own,
            columns=columns,
            store_in=None if place.slots is None else (self._pool, place.slots),
            own_mask=additive(visible, model.group, dtype),
            others=self._others,
            others_mask=additive(read, model.group, dtype),
            reads=limits.view(-1, 1) > 0,
            rotation=Rotation(model.parts.rotation.cos[at], model.parts.rotation.sin[at]),
            kept=place.kept,
        )

    def _read(self, given: ChainInputs, heat: Tensor, hidden: Tensor, depth: int) -> _Slot:
        """The slot behind states [B, d]."""
        shape, model = self._shape, self._model
        logits = model.parts.head(hidden).float()
        log_probs = torch.log_softmax(logits, -1)
        entropies = -torch.linalg.vecdot(log_probs.exp(), log_probs.clamp(min=LEAST))
        tops = log_probs.topk(2).values
        ranking = logits
        if shape.is_sampled:
            keys = given.noise.view(shape.depth, -1, 2)[depth - 1].to(torch.int32)
            ranking = perturbed(logits, heat.float(), keys, model.vocab)
        columns = top_by_key(ranking, shape.candidates)[1]
        scores = torch.full_like(heat, float("nan"))
        if shape.is_scored and model.score is not None:
            stats = device_stats(tops, entropies, given.lags + (depth - 1))
            chances = model.score(hidden, stats).double()
            own = torch.where(heat == 0, chances[:, GREEDY], chances[:, SAMPLED])
            scores = torch.where(given.asks_score > 0, own, scores)
        return _Slot(
            tokens=model.vocab[columns],
            probs=log_probs.gather(1, columns).exp(),
            entropies=entropies.double(),
            top_probs=tops[:, 0].exp().double(),
            scores=scores,
        )


class _Ending:
    """Which of B chains have ended, where and why."""

    def __init__(self, given: ChainInputs, rules: Rules, confidence: Confidence) -> None:
        self.lengths = torch.zeros_like(given.limits)
        self.reasons = torch.full_like(given.limits, GOES_ON)
        self._path_probs = torch.ones_like(rules.thresholds)
        self._ends = given.ends.view(len(given.limits), -1)
        self._limits = given.limits
        self._rules = rules
        self._confidence = confidence

    def take(self, slot: _Slot, depth: int) -> None:
        """Account for the tokens at `depth`, which is kept in every chain that still goes on."""
        known = self._confidence.probability(slot.top_probs)
        chances = torch.where(slot.scores.isnan(), known, slot.scores)
        self._path_probs = self._path_probs * chances
        signals = Signals(slot.entropies, slot.scores, chances, self._path_probs)
        reasons = torch.where(should_stop(self._rules, signals, depth=depth), BY_POLICY, GOES_ON)
        reasons = torch.where(self._limits <= depth, AT_LIMIT, reasons)
        is_end = (self._ends == slot.tokens[:, :1]).any(1)
        reasons = torch.where(is_end, AT_END, reasons)
        is_alive = self.reasons == GOES_ON
        self.lengths = self.lengths + is_alive
        self.reasons = torch.where(is_alive, reasons, self.reasons)
