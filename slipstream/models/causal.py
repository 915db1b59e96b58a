"""A causal language model over our own cache, of many sessions and trees: a target, or the plain
draft of speculative decoding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.core.sequence import common_prefix
from slipstream.core.tree import MAX_NODES, TokenTree
from slipstream.core.verify.draws import FindContenders
from slipstream.core.verify.noise import Floats
from slipstream.models.decoder import Decoder
from slipstream.models.dtypes import CPU, Array
from slipstream.models.format.architecture import ModelSizes
from slipstream.models.kv.batch import Batch, Draw, Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, SCRATCH_ROWS, KvPool, round_up
from slipstream.models.reference import SAMPLE_TOKENS, sample_tokens
from slipstream.models.scorer import Ask, Grow, Scorer, Scores, Sync, check_ask, check_room, on_host

_CHUNK_ROWS = 256
_OWN_SCRATCH = MAX_NODES


class CausalModel:
    """A target, or a draft, as a forward of the tokens of any number of sessions.

    `dtype` is that of keys and values, `weights_type` names the weights' as results show it;
    `decoder` computes, and `models.loading` chooses it.
    """

    def __init__(self, decoder: Decoder, sizes: ModelSizes) -> None:
        self.decoder, self.numerics, self.engine = decoder, decoder.numerics, decoder.engine
        self.layout, self.num_embeddings = sizes.layout, sizes.num_embeddings
        self.hidden_size, self._mlp_size = sizes.hidden_size, sizes.mlp_size
        self.vocab_size, self.context_length = sizes.vocab_size, sizes.context_length
        self.device, self.dtype = sizes.layout.device, sizes.layout.dtype
        self.weights_type, self.weight_bytes = sizes.weights_type, decoder.weight_bytes
        self.rule, self.draws_on_device = decoder.rule, decoder.draws_on_device
        self.contenders: FindContenders | None = decoder.contenders

    def workspace_bytes(self, num_rows: int) -> int:
        """Return the most bytes that a forward of so many tokens needs besides weights and caches.

        Hidden states and what the widest products make of them, logits in both precisions, on a
        CPU the keys of one layer gathered once, and what the decoder keeps.
        """
        width = 4 * self.hidden_size + 4 * self._mlp_size
        row = width * self.dtype.itemsize + self.vocab_size * (self.dtype.itemsize + 4)
        layer = replace(self.layout, num_layers=1, hidden_layers=()).bytes_per_token
        kept = self.decoder.workspace_bytes(row, self.hidden_size * self.dtype.itemsize)
        gathered = self.context_length * layer if self.device == CPU else 0
        return int(num_rows * row + gathered) + kept

    def pool(self, num_pages: int, *, scratch_rows: int = SCRATCH_ROWS) -> KvPool:
        """Memory for the caches of an engine's sessions."""
        return self.decoder.new_pool(num_pages, scratch_rows)

    def open(self, capacity: int) -> KvCache:
        """An empty cache with room for `capacity` tokens, in memory of its own."""
        num_pages = round_up(capacity, BLOCK_SIZE) // BLOCK_SIZE
        return self.open_in(self.decoder.new_pool(num_pages, _OWN_SCRATCH, lasts=False))

    def open_in(self, pool: KvPool) -> KvCache:
        """An empty cache over an engine's memory, without a page yet."""
        return KvCache(pool, limit=self.context_length)

    def prefill(self, cache: KvCache, tokens: Sequence[int]) -> None:
        """Cache `tokens` at the positions that follow the cache's count, in chunks."""
        for start in range(0, len(tokens), _CHUNK_ROWS):
            _, (slots,) = self.forward([Part(cache, tokens[start : start + _CHUNK_ROWS])])
            cache.keep(slots)

    def forward(self, parts: Sequence[Part]) -> tuple[Any, tuple[tuple[int, ...], ...]]:
        """Return final hidden states [n, d] part by part, pending tokens before nodes, and the
        tokens' slots by part. States are an array of native code, or a tensor of torch's.

        The parts' caches are different ones of one pool. Nothing becomes final: the caller sets
        each cache which slots to `keep`. Raises `ModelError` for a position past the context,
        `CapacityError` for tokens that find no room.
        """
        batch = self._laid_out(parts)
        hidden, _ = self.decoder.forward(parts[0].cache.pool, batch)
        return hidden, batch.slots_by_part()

    def draw(
        self, parts: Sequence[Part], draws: Iterable[Draw]
    ) -> tuple[Any, tuple[tuple[int, ...], ...], list[int]]:
        """Return what `forward` does, and tokens drawn on the device; one transfer brings them, and
        the next forward overwrites the states. For a model that `draws_on_device`."""
        batch = self._laid_out(parts)
        hidden, tokens = self.decoder.forward(parts[0].cache.pool, batch, draws)
        return hidden, batch.slots_by_part(), tokens

    def logits(self, hidden: Any) -> Any:
        """Logits [rows, vocab] for hidden states [rows, d]: both are in the model's dtype, or in
        float32 where native code computes."""
        return self.decoder.logits(hidden)

    def sample(self) -> tuple[Array, Array]:
        """Hidden states of the tokens that models are compared by, and the last logits. They come
        in two forwards, so that the second one needs what the first has cached."""
        cache, tokens = self.open(SAMPLE_TOKENS), sample_tokens(self.vocab_size)
        states = []
        for half in (tokens[: SAMPLE_TOKENS // 2], tokens[SAMPLE_TOKENS // 2 :]):
            hidden, (slots,) = self.forward([Part(cache, half)])
            cache.keep(slots)
            states.append(on_host(hidden))
        return np.concatenate(states), on_host(self.logits(hidden[-1:]))

    def _laid_out(self, parts: Sequence[Part]) -> Batch:
        for part in parts:
            end = part.end + max(part.tree.depths(), default=0)
            if end > self.context_length:
                raise ModelError(
                    f"position {part.end} is past the model's context of {self.context_length}"
                    " tokens"
                )
            part.cache.reserve(part.end)
            part.cache.own(min(end, part.cache.num_slots))
        return Batch.of(parts)


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
