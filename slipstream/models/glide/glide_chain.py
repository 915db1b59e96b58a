"""Chains of drafts on a device: the first pass, and later steps, a few at a time.

Functions of static tensors for B sessions: their new tokens go through the draft together, then one
token of each at a time. A chain that has ended is computed on and not counted. No value is read on
the host, so that both functions can be captured whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.policy.stop import MAX_DRAFT_TOKENS
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.glide_torch import Attended, DraftTokens, TorchDraft
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.paged import on_pages, tiles_of

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

    def read(
        self, hidden: Tensor, steps: Tensor, memory: "ChainMemory", state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what `read_chain` does of the slots behind states [B, d]."""
        head, first = [self.draft.vocab], hidden[:, :0]
        if own := self.decision:
            head += [own["stats.weight"], own["out.weight"]]
            first = F.linear(hidden.float(), own["hidden.weight"], own["hidden.bias"])
        chains = [steps, memory.numbers, state]
        found: tuple[Tensor, Tensor] = torch.ops.slipstream.read_chain(
            self.draft.logits(hidden), first, head, chains, memory.num_candidates
        )
        return found

    def turns(self, positions: Tensor) -> Rope:
        """Return the factors of positions [R], [R, rotary_dim] each."""
        return Rope(*self.rotary.index_select(1, positions))


class ChainMemory:
    """Tensors that B sessions' chains read in all of their steps, where graphs find them:
    `integers`, of which `steps` are one part, `numbers` [B, n] as `ChainNumber` names them, and
    the `features` [B, c] of last tokens whose states the target has not sent."""

    def __init__(
        self, model: ChainModel, pool: KvPool, sessions: int, num_pages: int, sizes: tuple[int, int]
    ) -> None:
        """A session has up to `num_pages` of its own, and of the target; `sizes` are the numbers of
        candidates and of points."""
        self.pool, self.sessions, device = pool, sessions, model.rotary.device
        self.num_candidates, num_points = sizes
        parts = [sessions * num_pages] * 2 + [model.num_others * sessions * 2]
        parts.append((MAX_DRAFT_TOKENS + STEPS) * len(StepNumber) * sessions)
        self.integers = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        numbers = torch.zeros(sessions, ChainNumber.POINTS + num_points, dtype=torch.float64)
        numbers[:, ChainNumber.NUM_POINTS] = num_points
        self.numbers = numbers.to(device)
        self.features = model.draft.embeddings.new_zeros(sessions, model.draft.num_features)
        pages, seen, others, steps = self.integers.split(parts)
        self.pages, self.seen = (own.view(sessions, -1) for own in (pages, seen))
        self.others = others.view(-1, sessions, 2)
        self.steps = steps.view(-1, len(StepNumber), sessions)
        start = torch.zeros(len(StateNumber), sessions, dtype=torch.float64)
        start[StateNumber.PATH_PROB] = 1
        self.start = start.to(device)
        self._tile, self._tiles = model.draft.tile, dict[int, Tensor]()

    def attended(
        self, counts: Tensor, num_read: Tensor, rows: int, kept: Tensor | None = None
    ) -> Attended:
        """Return what `rows` tokens of each session attend to, that see `counts` [n] of their own
        keys and `num_read` [n] of the target's."""
        if rows not in self._tiles:
            made = tiles_of([rows] * self.sessions, self._tile)
            self._tiles[rows] = torch.from_numpy(made).to(counts.device)
        tiles = self._tiles[rows]
        own, seen = on_pages(self.pages, tiles, counts), on_pages(self.seen, tiles, num_read)
        return Attended(own, seen, list(self.others), kept)


def first_pass(
    model: ChainModel, memory: ChainMemory, rows: int
) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Return the function of `rows` new tokens of each session, given as [5 * B * rows + B]
    integers: tokens, positions, slots, numbers of own keys, numbers of the target's or slots of
    its states, and which rows are the last ones. It returns what `later_steps` does, of the first
    slot and the `STEPS` behind it."""

    def run(given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens, positions, slots, counts, num_read, last = given.split(
            [memory.sessions * rows] * 5 + [memory.sessions]
        )
        steps = memory.steps[0]
        ends = (steps[StepNumber.COUNT], steps[StepNumber.NUM_READ])
        passes = [memory.attended(*ends, 1, last)]
        if len(model.draft.layers) > 1:
            passes.insert(0, memory.attended(counts, num_read, rows))
        features = model.draft.features(memory.others, num_read, memory.features)
        read = DraftTokens(tokens, model.turns(positions), slots, features)
        carried, hidden = model.draft.states(memory.pool, read, passes)
        state, numbers = model.read(hidden, steps, memory, memory.start)
        return _go_on(model, memory, memory.steps[1 : 1 + STEPS], state, carried, [numbers])

    return run


def later_steps(
    model: ChainModel, memory: ChainMemory
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Return the function of `STEPS` steps [STEPS, 7, B], as `StepNumber` names them, of chains in
    some states [4, B], and of what their last tokens gave, [B, c]. It returns their states behind
    them, [B, n + 2] float64: the numbers of slots, then lengths and reasons, and what their last
    tokens give."""
    return lambda steps, state, carried: _go_on(model, memory, steps, state, carried, [])


def _go_on(
    model: ChainModel,
    memory: ChainMemory,
    steps: Tensor,
    state: Tensor,
    carried: Tensor,
    found: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    turns = model.turns(steps[:, StepNumber.POSITION].flatten())
    for cos, sin, step in zip(*(own.chunk(STEPS) for own in turns), steps, strict=True):
        ids, slots = state[StateNumber.TOKEN].long(), step[StepNumber.SLOT]
        tokens = DraftTokens(ids, Rope(cos, sin), slots, carried)
        attended = memory.attended(step[StepNumber.COUNT], step[StepNumber.NUM_READ], 1)
        carried, hidden = model.draft.states(memory.pool, tokens, [attended])
        state, numbers = model.read(hidden, step, memory, state)
        found.append(numbers)
    ends = state[StateNumber.LENGTH : StateNumber.REASON + 1].t()
    return state, torch.cat([*found, ends], 1), carried
