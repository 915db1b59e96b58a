"""Models that compute nothing: they know what to say by a script, and take the time of a device.

They stand where a target's and a draft's networks stand, below engines, queues and services, all
of which are the real ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.bench.timed.script import WRONG, Script
from slipstream.bench.timed.waiting import DeviceTime
from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.history import num_same
from slipstream.core.types import Delta
from slipstream.models.kv_layout import KvLayout
from slipstream.models.pool import KvPool
from slipstream.models.rows import Part, lay_out
from slipstream.models.scorer import Ask, Scores, Sync
from slipstream.sizing.recording import Devices

CONTEXT = 8192
SURE = 50.0
"""A score above all others that leaves nothing to chance."""
UNSURE = 0.5
"""One that does: its law is nearly even, which is where `svip` stops."""
LAYOUT = KvLayout(1, 1, 8, torch.float32, torch.device("cpu"))


class TimedModel:
    """Stands in for `CausalModel` in a target: hidden states are the tokens themselves."""

    has_shapes = False
    context_length = CONTEXT
    layout = LAYOUT

    def __init__(self, script: Script, devices: Devices) -> None:
        self._script = script
        self._curve = devices.curve()
        self.vocab_size = script.vocab_size

    def forward(self, parts: Sequence[Part]) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """See `CausalModel.forward`."""
        rows = [token for part in parts for token in (*part.pending, *part.tree.tokens)]
        with DeviceTime(self._curve.seconds(len(rows), len(parts))):
            for part in parts:
                part.cache.reserve(part.end)
                end = part.end + max(part.tree.depths(), default=0)
                part.cache.own(min(end, part.cache.num_slots))
            places = tuple(layout.places for layout in lay_out(parts))
        return torch.tensor(rows)[:, None], places

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalModel.logits`."""
        following = [self._script.following(token) for token in hidden[:, 0].tolist()]
        return _scores(following, [SURE] * len(following), self.vocab_size)


@dataclass(slots=True)
class State:
    """A session's place in the script."""

    capacity: int
    tokens: list[int] = field(default_factory=list)
    """Those that would have keys: the prefix, and what was drafted behind it."""
    guesses: tuple[int, ...] = (WRONG,)
    num_grown: int = 0


class TimedScorer:
    """`Scorer` of a draft that grows chains. All who share a pass share its time."""

    vocab: Tensor | None = None
    hidden_size = 1
    max_lag: int | None = None
    context_length: int | None = None
    layout = LAYOUT

    def __init__(self, script: Script, devices: Devices) -> None:
        self._script = script
        self._devices = devices

    def pool(self, num_pages: int) -> KvPool:
        """See `Scorer.pool`; nothing is ever taken of it."""
        return KvPool(LAYOUT, num_pages, scratch_rows=1)

    def open(self, capacity: int, pool: KvPool | None = None) -> State:
        """See `Scorer.open`."""
        del pool
        return State(capacity)

    def num_same(self, state: State, tokens: Sequence[int]) -> int:
        """See `Scorer.num_same`."""
        return num_same(state.tokens, Delta(0, tuple(tokens)))

    def check(self, ask: Ask) -> None:
        """See `Scorer.check`."""
        state: State = ask.state
        if isinstance(ask, Sync):
            if not 0 < len(ask.tokens) <= state.capacity:
                raise CapacityError(f"a prefix of {len(ask.tokens)} tokens has no room")
        elif list(ask.parents) != [state.num_grown - 1]:
            raise InvalidRequest("recorded rounds are drafted as chains")

    def score(self, asks: Sequence[Ask]) -> Scores:
        """See `Scorer.score`."""
        for ask in asks:
            self.check(ask)
        with DeviceTime(self._devices.level(sum(map(self._take, asks)))):
            states: list[State] = [ask.state for ask in asks if ask.num_scores]
            tokens = [at.guesses[min(at.num_grown, len(at.guesses) - 1)] for at in states]
            last = [at.num_grown + 1 >= len(at.guesses) for at in states]
            heights = [UNSURE if is_last else SURE for is_last in last]
            logits = _scores(tokens, heights, self._script.vocab_size)
        return Scores(logits, torch.zeros(len(states), 1))

    def num_bytes(self, state: State) -> int:
        """See `Scorer.num_bytes`."""
        del state
        return 0

    def close(self, state: State) -> None:
        """See `Scorer.close`."""

    def _take(self, ask: Ask) -> int:
        """Move a session on; the rows that takes."""
        state: State = ask.state
        if not isinstance(ask, Sync):
            state.tokens += ask.tokens
            state.num_grown += 1
            return 1
        same = min(self.num_same(state, ask.tokens), len(ask.tokens) - 1)
        state.tokens = list(ask.tokens)
        state.guesses = self._script.guesses(ask.tokens[-1]).tokens
        state.num_grown = 0
        return len(ask.tokens) - same


def _scores(tokens: Sequence[int], heights: Sequence[float], vocab_size: int) -> Tensor:
    """Logits [rows, vocab] that are 0 but for one token each."""
    logits = torch.zeros(len(tokens), vocab_size)
    if tokens:
        logits[torch.arange(len(tokens)), torch.tensor(tokens)] = torch.tensor(heights)
    return logits
