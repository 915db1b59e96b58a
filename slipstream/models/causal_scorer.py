"""Any causal language model as a draft: the plain draft of speculative decoding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice

import numpy as np

from slipstream.core.sequence import common_prefix
from slipstream.core.tree import TokenTree
from slipstream.core.verify.noise import Floats
from slipstream.models.causal import CausalModel
from slipstream.models.kv.batch import Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvPool, round_up
from slipstream.models.scorer import Ask, Grow, Scorer, Scores, Sync, check_ask, check_room, on_host


@dataclass(slots=True)
class CausalState:
    cache: KvCache
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys are cached, in order; a drafted chain included."""
    nodes: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    num_synced: int = 0


class CausalScorer(Scorer):
    """`Scorer` over a `CausalModel`. A chain grows in its cache, a tree is scored anew.

    The tokens of a pass share a forward, as far as there is room for their trees; in `fast`
    numerics a token may differ in the last bit from the same token alone.
    """

    vocab = None
    max_lag = None

    def __init__(self, model: CausalModel, *, vocab_size: int | None = None) -> None:
        """Leading ids up to `vocab_size` are scored, by default all of the model's."""
        self._model = model
        self._vocab_size = vocab_size or model.vocab_size
        self.context_length: int = model.context_length
        self.hidden_size = model.hidden_size
        self.layout = model.layout

    def pool(self, num_pages: int) -> KvPool:
        return self._model.pool(num_pages)

    def prepare(self, pool: KvPool) -> None:
        self._model.decoder.prepare(pool)

    def open(self, capacity: int, pool: KvPool | None = None) -> CausalState:
        if pool is None:
            pool = self.pool(round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE)
        cache = KvCache(pool, limit=capacity)
        cache.reserve(capacity)
        return CausalState(cache)

    def skip(self, state: CausalState, skipped: int) -> None:
        assert not skipped, "a plain draft reads whole texts"

    def check(self, ask: Ask) -> None:
        state, end = ask.state, len(ask.tokens)
        check_ask(ask, state.parents, state.num_synced)
        if isinstance(ask, Grow):
            tree = TokenTree((*state.nodes, *ask.tokens), (*state.parents, *ask.parents))
            end = state.num_synced + max(tree.depths())
        check_room(end, min(state.cache.num_slots, self.context_length))

    def score(self, asks: Sequence[Ask]) -> Scores:
        """See `Scorer.score`; what a plain draft can read of the target is nothing."""
        for ask in asks:
            self.check(ask)
        laid = [_synced(ask) if isinstance(ask, Sync) else _grown(ask) for ask in asks]
        parts = [self._known(part) for part in laid]
        counts = (len(ask.tokens) if isinstance(ask, Grow) else int(ask.is_scored) for ask in asks)
        room = len(asks[0].state.cache.pool.scratch)
        found = [
            self._forward(group, list(islice(counts, len(group)))) for group in _groups(parts, room)
        ]
        logits, hidden = (np.concatenate(rows) for rows in zip(*found, strict=True))
        return Scores(logits, hidden)

    def _known(self, part: Part) -> Part:
        """The part with the last token of the draft in the place of each that it does not have.

        A target that numbers its tokens alike may have more of them: added ones, or padding.
        """
        last, tree = self._vocab_size - 1, part.tree
        if max((*part.pending, *tree.tokens)) <= last:
            return part
        pending = [min(token, last) for token in part.pending]
        nodes = tuple(min(token, last) for token in tree.tokens)
        return Part(part.cache, pending, TokenTree(nodes, tree.parents))

    def _forward(self, parts: Sequence[Part], counts: Sequence[int]) -> tuple[Floats, Floats]:
        """Logits and hidden states of the last rows of each part, as many as `counts` has; what is
        no tree is kept."""
        hidden, places = self._model.forward(parts)
        for part, slots in zip(parts, places, strict=True):
            if not part.tree:
                part.cache.keep(slots)
        ends = accumulate(len(slots) for slots in places)
        spans = (range(end - count, end) for end, count in zip(ends, counts, strict=True))
        wanted = [row for span in spans for row in span]
        kept = hidden[wanted]
        return on_host(self._model.logits(kept)[:, : self._vocab_size]), on_host(kept)


def _synced(ask: Sync) -> Part:
    state: CausalState = ask.state
    same = common_prefix(state.tokens, ask.tokens)
    # The last token is processed again, if need be: its scores are wanted.
    state.cache.truncate(min(same, len(ask.tokens) - 1))
    state.tokens = list(ask.tokens)
    state.num_synced = len(ask.tokens)
    state.nodes.clear()
    state.parents.clear()
    return Part(state.cache, state.tokens[state.cache.count :])


def _grown(ask: Grow) -> Part:
    state: CausalState = ask.state
    is_chain = len(ask.tokens) == 1 and ask.parents[0] == len(state.nodes) - 1
    is_chain = is_chain and len(state.tokens) == state.num_synced + len(state.nodes)
    state.nodes += ask.tokens
    state.parents += ask.parents
    if is_chain:
        state.tokens += ask.tokens
        return Part(state.cache, ask.tokens)
    del state.tokens[state.num_synced :]
    state.cache.truncate(state.num_synced)
    return Part(state.cache, (), TokenTree(tuple(state.nodes), tuple(state.parents)))


def _groups(parts: Sequence[Part], num_nodes: int) -> Iterator[list[Part]]:
    """The parts in order, with trees of up to `num_nodes` nodes together."""
    group: list[Part] = []
    for part in parts:
        if group and sum(len(one.tree) for one in (*group, part)) > num_nodes:
            yield group
            group = []
        group.append(part)
    yield group
