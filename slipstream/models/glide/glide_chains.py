"""Whole chains of many sessions on a device, seen from the host: requests become a few vectors for
`glide_chain.py`, and numbers come back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import MAX_DRAFT_TOKENS
from slipstream.core.verify.draws import draw_keys_of
from slipstream.models.cuda.graphs import Replay, send
from slipstream.models.decision import DecisionModel
from slipstream.models.decoder import ANY_ROWS
from slipstream.models.dtypes import Array
from slipstream.models.glide.glide_chain import (
    GOES_ON,
    MAX_ENDS,
    STEPS,
    ChainModel,
    ChainNumber,
    StaticChains,
    StepNumber,
)
from slipstream.models.glide.glide_scorer import CHAIN_ROWS, GlideScorer
from slipstream.models.glide.glide_torch import TorchDraft, pages_read, place_of
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool, round_up
from slipstream.models.scorer import NUM_SINKS, Candidates, ChainRequest
from slipstream.models.torch.arrays import as_array
from slipstream.models.torch.packing import fit, row_steps

_SESSIONS = row_steps(32, ANY_ROWS)
_ROWS = CHAIN_ROWS // _SESSIONS[-1]
"""New tokens of a session in its first pass."""
_Begun = tuple[int, int, Tensor | None]
"""Start, number of seen positions and features of one chain of a `_Pass`."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """Chains of one pass: `starts` [N] of their tokens are computed already, of `counts` [N]; of
    the target's keys they may read `num_seen` [N]."""

    asks: Sequence[ChainRequest]
    starts: Array
    counts: Array
    num_seen: Array
    pages: Array
    """Pages [N, P] of their own keys; behind them the pool's scratch, as for what has no room."""
    order: Array
    """Chain of each of B sessions of a shape: padding repeats the first one."""
    features: Sequence[Tensor | None]
    """Features [1, c] of the last tokens whose states the target has not sent."""

    def places(self, columns: Array) -> tuple[Array, Array]:
        """Return positions and slots of tokens at `columns` [N, n] of their sessions' keys."""
        skipped = np.array([ask.state.skipped for ask in self.asks])[:, None]
        page = np.take_along_axis(self.pages, columns // BLOCK_SIZE, 1)
        positions = columns + np.where(columns < NUM_SINKS, 0, skipped)
        return positions, page * BLOCK_SIZE + columns % BLOCK_SIZE

    def num_read(self, columns: Array, *, reads_first: bool) -> Array:
        """Return how many of the target's keys tokens at `columns` [N, n] see: those before, which
        lead by some from `NUM_SINKS` on. Position 0 reads itself in training, before the last
        layer."""
        leads = np.array([ask.state.lead for ask in self.asks])[:, None]
        before = columns + (columns >= NUM_SINKS) * leads
        before = np.where(columns == 0, int(reads_first), before)
        found: Array = np.minimum(self.num_seen[:, None], before)
        return found

    def first(self, seen: Array | None = None) -> Array:
        """Return what `first_pass` takes, of `_ROWS` tokens each; padding repeats the first one. Of
        hidden states, those are read that are on the pages `seen` [N, P]."""
        pairs = zip(self.asks, self.starts, strict=True)
        news = [list(ask.state.tokens[start:]) for ask, start in pairs]
        counts, index = self.counts - self.starts, np.arange(_ROWS)
        columns = self.starts[:, None] + np.where(index < counts[:, None], index, 0)
        tokens = np.array([new + new[:1] * (_ROWS - len(new)) for new in news])
        if seen is None:
            read = self.num_read(columns, reads_first=True)
        else:
            page = np.take_along_axis(seen, columns // BLOCK_SIZE, 1)
            slots = page * BLOCK_SIZE + columns % BLOCK_SIZE
            read = np.where(columns < self.num_seen[:, None], slots, -1)
        last = np.arange(len(self.order)) * _ROWS + counts[self.order] - 1
        parts = (tokens, *self.places(columns), columns + 1, read)
        return np.concatenate([*(part[self.order].reshape(-1) for part in parts), last])

    def steps(self) -> Array:
        """Return the numbers [D, 7, B] of all depths, as `StepNumber` names them."""
        depths = np.arange(MAX_DRAFT_TOKENS + STEPS)
        columns = self.counts[:, None] - 1 + depths
        lags = np.array([ask.lag for ask in self.asks])[:, None] + depths
        made = np.zeros((len(StepNumber), *columns.shape), np.int64)
        read = self.num_read(columns, reads_first=False)
        made[: StepNumber.FIRST_KEY] = *self.places(columns), columns + 1, read, lags
        samplings = [ask.sampling for ask in self.asks]
        if not all(own.is_greedy for own in samplings):
            firsts = np.array([[len(ask.tokens) + ask.state.skipped] for ask in self.asks])
            made[StepNumber.FIRST_KEY :] = draw_keys_of(samplings, firsts + depths)
        return made[:, self.order].transpose(2, 0, 1)

    def numbers(self, num_points: int) -> Array:
        """Return the numbers [B, n] of chains, as `ChainNumber` names them."""
        made = np.zeros((len(self.asks), ChainNumber.POINTS + num_points))
        made[:, ChainNumber.ENDS : ChainNumber.POINTS] = -1
        for row, ask in zip(made, self.asks, strict=True):
            stop, points = ask.stop, ask.calibration.points
            limits = (stop.threshold, stop.fallback, ask.min_path_prob or 0.0, stop.number)
            sizes = (stop.max_depth, ask.limit, ask.is_scored, len(points))
            row[: ChainNumber.ENDS] = ask.sampling.temperature, *limits, *sizes
            row[ChainNumber.ENDS : ChainNumber.ENDS + len(ask.ends)] = sorted(ask.ends)
            row[ChainNumber.POINTS : ChainNumber.POINTS + len(points)] = points
        return made[self.order]


class GlideChains:
    """Follows chains with a GliDe draft, or an EAGLE-3 head, in fixed shapes, which `prepare`
    captures."""

    max_new_tokens = _ROWS
    max_ends: float = MAX_ENDS

    def __init__(
        self,
        scorer: GlideScorer,
        context_length: int,
        decision: DecisionModel | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Positions are below `context_length`. Requests go by the `profile`."""
        length = context_length + MAX_DRAFT_TOKENS + BLOCK_SIZE
        draft, self._scorer = scorer.backend, scorer
        assert isinstance(draft, TorchDraft), "native code has chains of its own"
        self._draft, self._layers = draft, scorer.layers
        self.replay = Replay(torch.device(scorer.layout.device))
        given, device = {} if decision is None else decision.weights, draft.embeddings.device
        weights = {name: torch.tensor(own, device=device) for name, own in given.items()}
        rotary = torch.stack(draft.rope(length))
        self._model = ChainModel(draft, rotary, weights, len(self._layers))
        self._num_pages = round_up(length, BLOCK_SIZE) // BLOCK_SIZE
        profile = profile or Profile()
        points = (profile.calibration.points, profile.calibration_sampled.points)
        most = min(max(profile.cape_table) + 1, len(draft.vocab))
        self._sizes = most, max(map(len, points))
        self._memories: dict[tuple[int, int], StaticChains] = {}

    def prepare(self, pool: KvPool) -> None:
        """Capture all shapes over a pool that nothing uses."""
        for sessions in reversed(_SESSIONS):
            memory = self._memory(pool, sessions)
            memory.steps[:, StepNumber.SLOT] = pool.scratch.start
            given = np.zeros((5 * _ROWS + 1) * sessions, np.int64)
            given[2 * _ROWS * sessions : 3 * _ROWS * sessions] = pool.scratch.start
            self._later(memory, 1, self._first(memory, given))

    @torch.inference_mode()
    def follow(self, asks: Sequence[ChainRequest]) -> list[list[Candidates]]:
        """Return the positions of each chain, in as few passes as shapes allow.

        The states hold the requests' tokens then, and no tree. Raises as `GlideScorer.score`.
        """
        for ask in asks:
            self._scorer.check(ask.sync)
        begun, size = self._begin(asks), _SESSIONS[-1]
        parts = [slice(start, start + size) for start in range(0, len(asks), size)]
        each = (self._follow(self._pass(asks[part], begun[part])) for part in parts)
        return [*chain.from_iterable(each)]

    def _begin(self, asks: Sequence[ChainRequest]) -> list[_Begun]:
        """Have the states hold the requests' tokens. Where the view lacks hidden states of a text,
        all of it but the last token is computed."""
        late = [ask for ask in asks if not 0 < len(ask.tokens) - 1 <= ask.sync.num_seen]
        late = late if self._draft.num_features else []
        steps = {id(step.state): step for step in self._scorer.steps([ask.sync for ask in late])}
        begun: list[_Begun] = []
        for ask in asks:
            step, seen = steps.get(id(ask.state)), ask.sync.num_seen
            if step is None:
                begun.append((ask.state.begin(ask.tokens, ask.view), seen, None))
            else:
                begun.append((step.start, min(seen, step.start), step.features))
        return begun

    def _pass(self, asks: Sequence[ChainRequest], begun: Sequence[_Begun]) -> _Pass:
        pages = np.full((len(asks), self._num_pages), asks[0].state.cache.pool.num_pages)
        for row, ask in zip(pages, asks, strict=True):
            own = ask.state.cache.pages[: self._num_pages]
            row[: len(own)] = own
        counts = np.array([len(ask.state.tokens) for ask in asks])
        starts, num_seen, features = zip(*begun, strict=True)
        order = np.arange(fit(len(asks), _SESSIONS, what="chains at once"))
        order = np.where(order < len(asks), order, 0)
        return _Pass(asks, np.array(starts), counts, np.array(num_seen), pages, order, features)

    def _follow(self, own: _Pass) -> list[list[Candidates]]:
        asks, num, order = own.asks, len(own.asks), own.order
        memory = self._memory(asks[0].state.cache.pool, len(order))
        seen, others, buffers = self._seen(own)
        parts = (own.pages[order], seen[order], others[:, order], own.steps())
        send(torch.from_numpy(np.concatenate([part.ravel() for part in parts])), memory.integers)
        send(torch.from_numpy(own.numbers(self._sizes[1])), memory.numbers)
        if any(features is not None for features in own.features):
            none = memory.features.new_zeros(1, self._draft.num_features)
            given = [none if features is None else features for features in own.features]
            memory.features.copy_(torch.cat([given[index] for index in order]))
        states = seen if self._draft.num_features else None
        found = self._first(memory, own.first(states))
        tables = [as_array(found[1])[:num]]
        for depth in range(1 + STEPS, max(ask.limit for ask in asks), STEPS):
            if (tables[-1][:, -1] != GOES_ON).all():
                break
            found = self._later(memory, depth, found)
            tables.append(as_array(found[1])[:num])
        del buffers  # kept until all that reads them is through
        slots = np.concatenate([table[:, :-2] for table in tables], 1)
        slots = slots.reshape(num, -1, 3 + 2 * self._sizes[0])
        lengths = tables[-1][:, -2].astype(int).tolist()
        each = zip(slots, lengths, asks, strict=True)
        return [_found(row[:length].tolist(), self._sizes[0], ask) for row, length, ask in each]

    def _seen(self, of: _Pass) -> tuple[Array, Array, list[Tensor]]:
        """Return the target's pages [N, P], the places [L, N, 2] of its buffers, and these."""
        pages = np.zeros((len(of.asks), self._num_pages), np.int64)
        others = np.zeros((len(self._layers), len(of.asks), 2), np.int64)
        buffers = []
        for index, (ask, count) in enumerate(zip(of.asks, of.num_seen.tolist(), strict=True)):
            if ask.view is None or not count:
                continue
            own = pages_read(count, ask.view.pages)
            pages[index, : len(own)] = own
            for number, layer in enumerate(self._layers):
                buffers.append(self._draft.readable(ask.view.layers[layer]))
                others[number, index] = place_of(buffers[-1])
        return pages, others, buffers

    def _memory(self, pool: KvPool, sessions: int) -> StaticChains:
        key = (id(pool), sessions)
        if key not in self._memories:
            given = (self._model, pool, sessions, self._num_pages, self._sizes)
            self._memories[key] = StaticChains(*given)
        return self._memories[key]

    def _first(self, chains: StaticChains, given: Array) -> tuple[Tensor, ...]:
        key, inputs = (id(chains), "first"), [torch.from_numpy(given)]
        return self.replay.run(key, chains.first_pass, inputs)

    def _later(
        self, chains: StaticChains, depth: int, found: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Return what `later_steps` does behind what it, or the first pass, has `found`."""
        inputs = [chains.steps[depth : depth + STEPS], found[0], found[2]]
        return self.replay.run((id(chains), "later"), chains.later_steps, inputs)


def _found(rows: list[list[float]], num: int, ask: ChainRequest) -> list[Candidates]:
    """Return a chain's positions out of its slots' numbers; see `read_chain`."""
    count = min(ask.num_candidates, num)
    found = []
    for entropy, top_prob, score, *rest in rows:
        tokens, probs = tuple(map(int, rest[:count])), tuple(rest[num : num + count])
        decided = None if math.isnan(score) or not ask.is_scored else score
        found.append(Candidates(tokens, probs, top_prob, entropy, decided))
    return found
