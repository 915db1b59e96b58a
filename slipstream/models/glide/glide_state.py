"""One session of a GliDe draft: what it holds, and what a pass does for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.sequence import common_prefix
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.scorer import NUM_SINKS, Ask, Grow, check_nodes


@dataclass(slots=True)
class GlideState:
    """A session's tokens, the keys and values of each draft layer, and the tree behind them.

    skipped: positions behind the first `NUM_SINKS` that are not read; tokens and cache lack them.
    parents and depths: of the tree's nodes; is_chain: each node hangs under the one before;
    target_kv: per target layer the keys and values that a node may read; addresses: where they are,
    for native code.
    """

    cache: KvCache
    capacity: int
    tokens: list[int] = field(default_factory=list)
    skipped: int = 0
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    is_chain: bool = True
    target_kv: Sequence[tuple[Any, Any]] = ()
    addresses: Sequence[int] | None = None

    def skip(self, skipped: int) -> None:
        """Leave out so many positions; what is held of others stays where it can."""
        num_more = skipped - self.skipped
        self.skipped = skipped
        if num_more > 0 and num_more % BLOCK_SIZE == 0:
            del self.tokens[NUM_SINKS : NUM_SINKS + num_more]
            self.cache.turn(num_more // BLOCK_SIZE)
        elif num_more:
            del self.tokens[NUM_SINKS:]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the positions of places start..stop-1."""
        if start >= NUM_SINKS or not self.skipped:
            return range(start + self.skipped, stop + self.skipped)
        sinks = range(start, min(stop, NUM_SINKS))
        return [*sinks, *range(sinks.stop + self.skipped, stop + self.skipped)]

    def begin(self, tokens: Sequence[int]) -> int:
        """Hold `tokens` without a tree; how many of them are computed already, all but the last
        at most."""
        tokens = list(tokens)
        start = min(common_prefix(self.tokens, tokens), len(tokens) - 1)
        self.tokens = tokens
        self.parents, self.depths, self.is_chain = [], [], True
        return start

    def append(self, parents: Sequence[int]) -> int:
        """Take nodes into the tree; how many there were."""
        old = len(self.parents)
        self.is_chain = self.is_chain and len(parents) == 1 and parents[0] == old - 1
        self.parents += parents
        self.depths += [1 if parent < 0 else self.depths[parent] + 1 for parent in parents]
        return old


@dataclass(frozen=True, slots=True)
class SessionStep:
    """A session's part of a pass: new tokens at their positions.

    Their keys come to places `start`, `start` + 1, ...: the prefix has the first ones, the tree's
    nodes have those behind it. The last `num_kept` go on behind the last layer's keys.
    """

    state: GlideState
    tokens: Sequence[int]
    positions: Sequence[int]
    start: int
    num_kept: int

    @property
    def first_node(self) -> int:
        """Return which node of the tree the first token is; below 0 for tokens of the prefix."""
        return self.start - len(self.state.tokens)

    @property
    def is_in_order(self) -> bool:
        """Return whether each token sees all places before its own."""
        return self.first_node < 0 or self.state.is_chain

    @property
    def num_held(self) -> int:
        """Positions of the target that its session may read."""
        pairs = self.state.target_kv
        return int(pairs[0][0].shape[-2]) if pairs else 0

    def num_read(self, index: int) -> int:
        """Return the positions of the target that a token sees: of a prefix those before its own.
        Position 0 has none and reads itself, as in training, unless it is the last one, whose view
        may lack it."""
        if self.first_node >= 0:
            return self.num_held
        place, is_kept = self.start + index, index >= len(self.tokens) - self.num_kept
        return min(self.num_held, place if place or is_kept else 1)


def check_ask(ask: Ask) -> None:
    """Raise `InvalidRequest` or `CapacityError` for a request that can't be served."""
    state: GlideState = ask.state
    needed = len(ask.tokens)
    if isinstance(ask, Grow):
        check_nodes(ask, state.parents, len(state.tokens))
        needed += len(state.tokens) + len(state.parents)
    elif not needed:
        raise InvalidRequest("a draft cannot score an empty prefix")
    if needed > state.capacity:
        raise CapacityError(
            f"the draft's session has room for {state.capacity} tokens, {needed} are needed"
        )
