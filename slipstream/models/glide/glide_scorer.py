"""GliDe behind the `Scorer` seam: sessions, prefixes and trees.

`load.py` gives it what computes. Knows nothing of stop rules, sampling or where the target's keys
and values come from.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.sequence import common_prefix
from slipstream.models.dtypes import CPU, Array
from slipstream.models.glide.glide_config import EagleConfig, GlideConfig
from slipstream.models.kv.batch import Batch
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, Buffers, KvLayout, KvPool, round_up
from slipstream.models.scorer import (
    NUM_SINKS,
    Ask,
    Grow,
    KvView,
    Scorer,
    Scores,
    Sync,
    check_ask,
    check_room,
    target_place,
)

CHAIN_ROWS = 512
"""Tokens of the largest pass of chains on a device."""


@dataclass(slots=True)
class GlideState:
    """A session's tokens, the keys and values of each draft layer, and the tree behind them.

    skipped: positions behind the first `NUM_SINKS` that are not computed; tokens and cache lack
    them; lead: how many of them the target's keys have, and so come before each later token's.
    parents and depths: of the tree's nodes; is_chain: each node hangs under the one before;
    num_read: positions of the target that its session may read; target_kv: per target layer the
    buffer that they lie in, on `target_pages` of it, or in order where these are None; addresses:
    where they are, for native code; others: the tokens that the draft's head lacks of the first
    `num_known` of the text, None of a text that is not an older one grown.
    """

    cache: KvCache
    tokens: list[int] = field(default_factory=list)
    skipped: int = 0
    lead: int = 0
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    is_chain: bool = True
    num_read: int = 0
    target_kv: Sequence[Any] = ()
    target_pages: Sequence[int] | None = None
    addresses: list[int] | None = None
    others: "array[int] | None" = None
    num_known: int = 0

    def skip(self, skipped: int) -> None:
        """Leave out so many positions: where they are others than before, the sinks stay."""
        if skipped != self.skipped:
            self.skipped = skipped
            del self.tokens[NUM_SINKS:]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the positions of places start..stop-1."""
        if start >= NUM_SINKS or not self.skipped:
            return range(start + self.skipped, stop + self.skipped)
        sinks = range(start, min(stop, NUM_SINKS))
        return [*sinks, *range(sinks.stop + self.skipped, stop + self.skipped)]

    def begin(self, tokens: Sequence[int], view: KvView | None) -> int:
        """Hold `tokens` without a tree; how many of them are computed already, all but the last
        at most."""
        tokens = list(tokens)
        self.lead = 0 if view is None else self.skipped - view.skipped
        num_same = common_prefix(self.tokens, tokens)
        if num_same < len(self.tokens):
            self.others = None
        self.tokens, start = tokens, min(num_same, len(tokens) - 1)
        self.parents, self.depths, self.is_chain = [], [], True
        return start

    def append(self, parents: Sequence[int]) -> int:
        """Take nodes into the tree; how many there were."""
        old = len(self.parents)
        self.is_chain = self.is_chain and len(parents) == 1 and parents[0] == old - 1
        self.parents += parents
        self.depths += [1 if parent < 0 else self.depths[parent] + 1 for parent in parents]
        return old

    def line(self, node: int) -> list[int]:
        """Return the nodes above one, from the root's end on, and itself."""
        line = [node]
        while (parent := self.parents[line[-1]]) >= 0:
            line.append(parent)
        return line[::-1]


@dataclass(frozen=True, slots=True)
class SessionStep:
    """A session's part of a pass: new tokens at their positions.

    Their keys come to places `start`, `start` + 1, ...: the prefix has the first ones, the tree's
    nodes have those behind it. The last `num_kept` go on behind the last layer's keys. `features`
    [n, d] are what an EAGLE-3 head reads beside each of them, where its backend computes.
    """

    state: GlideState
    tokens: Sequence[int]
    positions: Sequence[int]
    start: int
    num_kept: int
    features: Any | None = None

    @property
    def first_node(self) -> int:
        """Return which node of the tree the first token is; below 0 for tokens of the prefix."""
        return self.start - len(self.state.tokens)

    def add_to(self, batch: Batch, chosen: range) -> None:
        """Add some of its tokens to a batch, as one part."""
        state, cache = self.state, self.state.cache
        for index in chosen:
            place = self.start + index
            batch.tokens.append(self.tokens[index])
            batch.positions.append(self.positions[index])
            batch.slots.append(cache.slot(place))
            batch.block_tables.append(cache)
            if self.first_node < 0 or state.is_chain:
                batch.num_seen.append(place + 1)
                batch.ancestors.append(())
            else:
                base, line = len(state.tokens), state.line(self.first_node + index)
                batch.num_seen.append(base)
                batch.ancestors.append([cache.slot(base + node) for node in line])
        batch.sizes.append(len(chosen))

    def num_read(self, index: int) -> int:
        """Return how many positions of the target a token sees: of a prefix those before its own.
        Position 0 has none and reads itself, as in training, unless it is the last one, whose view
        may lack it."""
        if self.first_node >= 0:
            return self.state.num_read
        place = target_place(self.start + index, self.state.lead)
        is_kept = index >= len(self.tokens) - self.num_kept
        return min(self.state.num_read, place if place or is_kept else 1)


class GlideBackend(Protocol):
    """Computation of a draft: `engine` names it, `weight_bytes` are those of what a step reads."""

    engine: str
    weight_bytes: int

    @property
    def buffers(self) -> Buffers:
        """Memory of keys and values where the draft computes."""

    def reach(self, length: int) -> None:
        """Compute what positions below `length` need."""

    def scores(self, steps: Sequence[SessionStep]) -> Scores:
        """Return scores of the tokens that go on, step by step."""


class GlideScorer(Scorer):
    """Scores prefixes and grows token trees with a GliDe draft (see `Scorer`).

    A query reads target positions before its own, as in training, so a `Sync` never reads the
    last token's own position even where the view holds it. In torch a session's scores may differ
    in their last bits with the other sessions of the pass.
    """

    state_type: type[GlideState] = GlideState

    def __init__(
        self,
        config: GlideConfig | EagleConfig,
        vocab: Array,
        layout: KvLayout,
        backend: GlideBackend,
    ) -> None:
        """`layout` is that of the draft's own keys and values."""
        self.config, self.vocab, self.layout, self.backend = config, vocab, layout, backend
        self.layers = config.target_layers
        self.mirrored = replace(layout, num_layers=len(self.layers)) if self.layers else None
        self.hidden_size = config.hidden_size
        self.max_lag = config.max_lag or None
        self.context_length = None
        self.engine, self.weight_bytes = backend.engine, backend.weight_bytes
        self._length = 0

    def workspace_bytes(self, num_rows: int) -> int:
        """Bytes that a pass of so many rows needs besides, at most: states and scores."""
        config = self.config
        width = 6 * config.hidden_size + 3 * config.intermediate_size
        num_rows = num_rows if self.layout.device == CPU else max(num_rows, CHAIN_ROWS)
        return num_rows * 4 * (width + 4 * len(self.vocab))

    def pool(self, num_pages: int) -> KvPool:
        # Captured chains write what is past a session's room to the first scratch page.
        return KvPool(self.layout, num_pages, scratch_rows=1, buffers=self.backend.buffers)

    def prepare(self, pool: KvPool) -> None:
        pass

    def open(self, capacity: int, pool: KvPool | None = None) -> GlideState:
        if capacity < 1:
            raise InvalidRequest(f"capacity is {capacity}, it must be at least 1")
        if pool is None:
            pool = self.pool(round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE)
        cache = KvCache(pool, limit=capacity)
        cache.reserve(capacity)
        self._reach(capacity)
        return self.state_type(cache)

    def skip(self, state: GlideState, skipped: int) -> None:
        state.skip(skipped)
        self._reach(skipped + state.cache.limit)

    def check(self, ask: Ask) -> None:
        state = ask.state
        check_ask(ask, state.parents, len(state.tokens))
        held = len(state.tokens) + len(state.parents) if isinstance(ask, Grow) else 0
        check_room(held + len(ask.tokens), state.cache.limit)
        if isinstance(ask, Sync) and ask.view is not None and ask.view.count:
            wanted, seen = self.layers, ask.view.layers
            if missing := [layer for layer in wanted if layer not in seen]:
                raise ModelMismatch(
                    f"the draft reads target layers {list(wanted)}, the view lacks {missing}"
                )

    def score(self, asks: Sequence[Ask]) -> Scores:
        """See `Scorer.score`.

        Of a prefix only what follows the longest common one is computed, and the last layer's
        outputs of its last token only. A node sees the prefix, its ancestors and itself, at the
        position its depth gives.
        """
        for ask in asks:
            self.check(ask)
        return self.backend.scores(self.steps(asks))

    def close(self, state: GlideState) -> None:
        super().close(state)
        state.tokens, state.target_kv, state.cache.limit = [], (), 0

    def _reach(self, length: int) -> None:
        """Compute what positions below `length` need."""
        if length > self._length:
            self.backend.reach(length)
            self._length = length

    def steps(self, asks: Sequence[Ask]) -> list[SessionStep]:
        """Return the steps of checked requests."""
        return [self.step(ask) for ask in asks]

    def step(self, ask: Ask) -> SessionStep:
        """Return what a checked request computes; its state then is as it asks for."""
        state, count = ask.state, len(ask.tokens)
        if isinstance(ask, Grow):
            base, old = len(state.tokens), state.append(ask.parents)
            positions = [base - 1 + state.skipped + depth for depth in state.depths[old:]]
            return SessionStep(state, ask.tokens, positions, base + old, count)
        start = state.begin(ask.tokens, ask.view)
        # What its tokens may read of the view, layers in the config's order.
        state.num_read, state.target_pages, given = ask.num_seen, None, list[Any]()
        if ask.view is not None and state.num_read:
            given = [ask.view.layers[layer] for layer in self.layers]
            state.target_pages = ask.view.pages
        if state.addresses is None or [*map(id, given)] != [*map(id, state.target_kv)]:
            state.target_kv, state.addresses = given, None
        tokens = state.tokens[start:]
        return SessionStep(state, tokens, state.positions(start, count), start, int(ask.is_scored))
