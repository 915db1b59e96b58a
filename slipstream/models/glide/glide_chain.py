"""Chains of drafts on a device: the first pass, and later steps, a few at a time.

Passes over static tensors for B sessions: their new tokens go through the draft together, then one
token of each at a time. A chain that has ended is computed on and not counted. No value is read on
the host, so that both can be captured whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.policy.stop import MAX_DRAFT_TOKENS
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.glide_torch import Attended, DraftTokens, TorchDraft
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.packing import tiles_of
from slipstream.models.torch.paged import on_pages

GOES_ON, AT_END, AT_LIMIT, BY_POLICY = range(4)
"""Ends of a chain: a token that nothing follows, the depth it may have, or its policy."""
MAX_ENDS = 8
"""Tokens that nothing can follow, a chain at most."""


class ChainNumber(IntEnum):
    """Numbers of a chain, float64, of which `ENDS` are `MAX_ENDS`, and `POINTS` the last ones."""

    HEAT = 0
    THRESHOLD = 1
    FALLBACK = 2
    LEAST_PATH = 3
    """Least probability of a path for one more token on it; 0 for any."""
    POLICY = 4
    MAX_DEPTH = 5
    LIMIT = 6
    ASKS_SCORE = 7
    NUM_POINTS = 8
    ENDS = 9
    """Tokens that nothing follows; -1 for none."""
    POINTS = 9 + MAX_ENDS
    """Measured acceptance by confidence, `NUM_POINTS` points; see `core.policy.stop`."""


class StepNumber(IntEnum):
    """Numbers of a chain's step, int64."""

    POSITION = 0
    SLOT = 1
    COUNT = 2
    """Number of its own keys that its token sees."""
    NUM_READ = 3
    """Number of the target's."""
    LAG = 4
    """Tokens from the newest key of the target to the slot behind it."""
    FIRST_KEY = 5
    SECOND_KEY = 6


class StateNumber(IntEnum):
    """State of a chain, float64."""

    TOKEN = 0
    LENGTH = 1
    REASON = 2
    PATH_PROB = 3


torch.library.define(
    "slipstream::read_chain",
    "(Tensor logits, Tensor first, Tensor[] head, Tensor[] chains, SymInt num) -> (Tensor, Tensor)",
)

STEPS = 2
"""Steps that are captured together: a chain that ends costs as many in vain, at most, and the host
waits once for them."""


@dataclass(frozen=True, slots=True)
class ChainModel:
    """A `draft`, the rotary factors [2, L, rotary_dim] of its chains' positions, the weights of its
    decision model, and how many target layers it reads."""

    draft: TorchDraft
    rotary: Tensor
    decision: Mapping[str, Tensor]
    num_others: int


class StaticChains:
    """Chains of B sessions, over tensors that all of their steps read, where graphs find them:
    `integers`, of which `steps` are one part, `numbers` [B, n] as `ChainNumber` names them, and
    the `features` [B, c] of last tokens whose states the target has not sent."""

    def __init__(
        self, model: ChainModel, pool: KvPool, sessions: int, num_pages: int, sizes: tuple[int, int]
    ) -> None:
        """A session has up to `num_pages` of its own, and of the target; `sizes` are the numbers of
        candidates and of points."""
        self._model, self._draft, device = model, model.draft, model.rotary.device
        self._pool, self._sessions = pool, sessions
        self._num_candidates, num_points = sizes
        parts = [sessions * num_pages] * 2 + [model.num_others * sessions * 2]
        parts.append((MAX_DRAFT_TOKENS + STEPS) * len(StepNumber) * sessions)
        self.integers = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        numbers = torch.zeros(sessions, ChainNumber.POINTS + num_points, dtype=torch.float64)
        numbers[:, ChainNumber.NUM_POINTS] = num_points
        self.numbers = numbers.to(device)
        self.features = self._draft.embeddings.new_zeros(sessions, self._draft.num_features)
        pages, seen, others, steps = self.integers.split(parts)
        self._pages, self._seen = (own.view(sessions, -1) for own in (pages, seen))
        self._others = others.view(-1, sessions, 2)
        self.steps = steps.view(-1, len(StepNumber), sessions)
        start = torch.zeros(len(StateNumber), sessions, dtype=torch.float64)
        start[StateNumber.PATH_PROB] = 1
        self._start, self._tiles = start.to(device), dict[int, Tensor]()

    def first_pass(self, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `later_steps` does, of the first slot and the `STEPS` behind it.

        `given` are [5 * B * R + B] integers of R new tokens of each session: tokens, positions,
        slots, numbers of own keys, numbers of the target's or slots of its states, and which rows
        are the last ones.
        """
        last = given[-self._sessions :]
        tokens, positions, slots, counts, num_read = given[: -self._sessions].chunk(5)
        steps = self.steps[0]
        passes = [self._attended(steps[StepNumber.COUNT], steps[StepNumber.NUM_READ], 1, last)]
        if len(self._draft.layers) > 1:
            rows = len(tokens) // self._sessions
            passes.insert(0, self._attended(counts, num_read, rows))
        features = self._draft.features(self._others, num_read, self.features)
        read = DraftTokens(tokens, self._turns(positions), slots, features)
        carried, hidden = self._draft.states(self._pool, read, passes)
        state, numbers = self._read(hidden, steps, self._start)
        return self._go_on(self.steps[1 : 1 + STEPS], state, carried, [numbers])

    def later_steps(
        self, steps: Tensor, state: Tensor, carried: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take `STEPS` steps [STEPS, 7, B], as `StepNumber` names them, of chains in some states
        [4, B], by what their last tokens gave, [B, c]. Return their states behind them, [B, n + 2]
        float64: the numbers of slots, then lengths and reasons, and what their last tokens give."""
        return self._go_on(steps, state, carried, [])

    def _go_on(
        self, steps: Tensor, state: Tensor, carried: Tensor, found: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        turns = self._turns(steps[:, StepNumber.POSITION].flatten())
        for cos, sin, step in zip(*(own.chunk(STEPS) for own in turns), steps, strict=True):
            ids, slots = state[StateNumber.TOKEN].long(), step[StepNumber.SLOT]
            tokens = DraftTokens(ids, Rope(cos, sin), slots, carried)
            attended = self._attended(step[StepNumber.COUNT], step[StepNumber.NUM_READ], 1)
            carried, hidden = self._draft.states(self._pool, tokens, [attended])
            state, numbers = self._read(hidden, step, state)
            found.append(numbers)
        ends = state[StateNumber.LENGTH : StateNumber.REASON + 1].t()
        return state, torch.cat([*found, ends], 1), carried

    def _turns(self, positions: Tensor) -> Rope:
        """Return the factors of positions [R], [R, rotary_dim] each."""
        return Rope(*self._model.rotary.index_select(1, positions))

    def _attended(
        self, counts: Tensor, num_read: Tensor, rows: int, kept: Tensor | None = None
    ) -> Attended:
        """Return what `rows` tokens of each session attend to, that see `counts` [n] of their own
        keys and `num_read` [n] of the target's."""
        if rows not in self._tiles:
            made = tiles_of([rows] * self._sessions, self._draft.tile)
            self._tiles[rows] = torch.from_numpy(made).to(counts.device)
        tiles = self._tiles[rows]
        own, seen = on_pages(self._pages, tiles, counts), on_pages(self._seen, tiles, num_read)
        return Attended(own, seen, list(self._others), kept)

    def _read(self, hidden: Tensor, steps: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `read_chain` does of the slots behind states [B, d]."""
        head, first = [self._draft.vocab], hidden[:, :0]
        if own := self._model.decision:
            head += [own["stats.weight"], own["out.weight"]]
            first = F.linear(hidden.float(), own["hidden.weight"], own["hidden.bias"])
        chains = [steps, self.numbers, state]
        found: tuple[Tensor, Tensor] = torch.ops.slipstream.read_chain(
            self._draft.logits(hidden), first, head, chains, self._num_candidates
        )
        return found
