"""A whole chain of drafts on the device: every step, candidate and decision to stop.

One function of static tensors for B sessions: their new tokens go through the draft together, then
one token of each at a time, to a fixed depth. A chain that has ended is computed on to the end and
not counted. No value is read on the host, so that the function can be captured whole; what it
needs and gives are single vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
    Attended,
    DraftTokens,
    TorchGlide,
    at_positions,
    limits_of,
)
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool
from slipstream.models.scorer import NUM_SINKS
from slipstream.models.torch.paged import attend, on_pages, page_slots, tiles_of

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
    """Integers of B sessions before their chains: single ones [B], then rows [B, n] of them, the
    pages of their stage among them; `tiles` by the number of a session's tokens."""

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
    stage_pages: Tensor
    tiles: Mapping[int, Tensor]


@dataclass(frozen=True, slots=True)
class ChainModel:
    """A `draft`, the rotary factors of its chains' positions, and its decision model."""

    draft: TorchGlide
    rope: Rope
    decision: DecisionNetwork | None = None


class ChainBody:
    """The function of one shape over one pool and the staged keys of the target: a layer's `stage`
    [2 * kv_heads, sessions * seen, head_dim] is filled before a run."""

    def __init__(
        self, model: ChainModel, shape: ChainShape, pool: KvPool, stage: Sequence[Tensor]
    ) -> None:
        self._model, self._shape, self._pool, self._stage = model, shape, pool, stage

    def __call__(self, integers: Tensor, doubles: Tensor) -> tuple[Tensor]:
        """Return [B, depth * num_outputs + 2] float64: slots, then the chain's length and why it
        ended. `integers` and `doubles` [B, n] are what `GlideChains` packs."""
        given = self._inputs(integers)
        heat, *limits = doubles[:, :4].unbind(1)
        rules = Rules(given.policies, given.max_depths, *limits)
        confidence = Confidence(doubles[:, 4:], given.num_points)
        ends = ChainEnds(given.limits, given.ends, rules, confidence)
        table = page_slots(given.pages)
        slots = [self._read(given, heat, self._begin(given, table), 1)]
        ends.count(slots[0], 1)
        for depth, (rope, places, attended) in enumerate(self._later(given, table), 2):
            tokens = DraftTokens(slots[-1].tokens[:, 0], rope, places)
            hidden = self._model.draft.states(self._pool, tokens, [attended])
            slots.append(self._read(given, heat, hidden, depth))
            ends.count(slots[-1], depth)
        lengths = torch.stack([ends.lengths, ends.reasons], 1).double()
        return (torch.cat([*(slot.numbers() for slot in slots), lengths], 1),)

    def _inputs(self, integers: Tensor) -> ChainInputs:
        shape, device = self._shape, integers.device
        singles, tokens, ends, pages, noise = integers.split(shape.input_sizes(), 1)
        num, tile = shape.sessions, self._model.draft.tile
        stage = torch.arange(num * shape.seen // BLOCK_SIZE, device=device).view(num, -1)
        tiles = {size: tiles_of(num, size, tile, device) for size in (1, shape.rows)}
        rows: list[Any] = [tokens, ends, pages.contiguous(), noise, stage, tiles]
        return ChainInputs(*singles.unbind(1), *rows)

    def _begin(self, given: ChainInputs, table: Tensor) -> Tensor:
        """Return states [B, d] behind the tokens that are given."""
        num, rows, device = self._shape.sessions, self._shape.rows, table.device
        steps = torch.arange(rows, device=device)
        # Padding repeats a session's first new token.
        steps = torch.where(steps < given.counts.unsqueeze(1), steps, 0)
        columns = given.starts.unsqueeze(1) + steps
        last = torch.arange(num, device=device) * rows + given.counts - 1
        ends = columns.flatten()[last, None]
        passes = [self._attended(given, ends + 1, self._limits(given, ends, False), last)]
        if len(self._model.draft.layers) > 1:
            limits = self._limits(given, columns, True)
            passes.insert(0, self._attended(given, columns + 1, limits))
        rope, places = self._placed(given, table, columns)
        tokens = DraftTokens(given.tokens.gather(1, steps).flatten(), rope, places)
        return self._model.draft.states(self._pool, tokens, passes)

    def _later(self, given: ChainInputs, table: Tensor) -> list[tuple[Rope, Tensor, Attended]]:
        """Return factors, slots and what is attended to of the tokens [B] at each later depth."""
        num = self._shape.depth - 1
        steps = torch.arange(num, device=table.device)
        columns = (given.starts + given.counts).unsqueeze(1) + steps
        (cos, sin), places = self._placed(given, table, columns)
        counts, limits = columns + 1, self._limits(given, columns, True)
        cos, sin, places, counts, limits = (
            own.reshape(len(columns), num, -1).transpose(0, 1).contiguous()
            for own in (cos, sin, places, counts, limits)
        )
        return [
            (
                Rope(cos[step], sin[step]),
                places[step, :, 0],
                self._attended(given, counts[step], limits[step]),
            )
            for step in range(num)
        ]

    def _placed(self, given: ChainInputs, table: Tensor, columns: Tensor) -> tuple[Rope, Tensor]:
        """Return factors and slots of tokens at `columns` [B, n] of their sessions' keys."""
        skipped = torch.where(columns < NUM_SINKS, 0, given.skipped.unsqueeze(1))
        rope = at_positions(self._model.rope, (columns + skipped).flatten())
        return rope, table.gather(1, columns).flatten()

    def _limits(self, given: ChainInputs, columns: Tensor, reads_first: bool) -> Tensor:
        num_seen, leads = given.num_seen[:, None], given.leads[:, None]
        return limits_of(columns, num_seen, leads, reads_first=reads_first)

    def _attended(
        self, given: ChainInputs, counts: Tensor, limits: Tensor, kept: Tensor | None = None
    ) -> Attended:
        """Return what tokens attend to that see `counts` [B, n] of their own keys and `limits` of
        the target's."""
        tiles = given.tiles[counts.shape[1]]
        own = on_pages(given.pages, tiles, counts.flatten())
        others = on_pages(given.stage_pages, tiles, limits.flatten())

        def read(stage: Tensor, query: Tensor) -> Tensor:
            found: Tensor = attend(query, stage, others, query.shape[2] ** -0.5)
            return found

        return Attended(own, [partial(read, stage) for stage in self._stage], kept)

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
