"""Any causal language model as a draft: the plain draft of speculative decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from slipstream.core.history import apply_delta
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta
from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.scorer import KvView, Scores


@dataclass(slots=True)
class _State:
    cache: KvCache
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys are cached, in order; a drafted chain included."""
    nodes: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    num_synced: int = 0


class CausalScorer:
    """`Scorer` over a `CausalModel`. A chain grows in its cache, a tree is scored anew."""

    vocab: Tensor | None = None
    max_lag: int | None = None

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.hidden_size: int = model.config.hidden_size

    def open(self, capacity: int) -> _State:
        """See `Scorer.open`."""
        return _State(self._model.open(capacity))

    def sync(self, state: _State, tokens: Sequence[int], view: KvView | None) -> Scores:
        """See `Scorer.sync`; what a plain draft can read of the target is nothing."""
        _, num_same = apply_delta(state.tokens, Delta(0, tuple(tokens)))
        # The last token is processed again, if need be: its row is what was asked for.
        state.cache.truncate(min(num_same, len(tokens) - 1))
        pending = list(tokens[state.cache.count :])
        self._model.prefill(state.cache, pending[:-1])
        state.tokens = list(tokens)
        state.num_synced = len(tokens)
        state.nodes.clear()
        state.parents.clear()
        return self._append(state, pending[-1])

    def grow(self, state: _State, tokens: Sequence[int], parents: Sequence[int]) -> Scores:
        """See `Scorer.grow`."""
        is_chain = len(tokens) == 1 and parents[0] == len(state.nodes) - 1
        is_chain = is_chain and len(state.tokens) == state.num_synced + len(state.nodes)
        state.nodes += tokens
        state.parents += parents
        if is_chain:
            state.tokens += tokens
            return self._append(state, tokens[0])
        del state.tokens[state.num_synced :]
        state.cache.truncate(state.num_synced)
        tree = TokenTree(tuple(state.nodes), tuple(state.parents))
        hidden, _ = self._model.forward(state.cache, [], tree)
        return self._scores(hidden[-len(tokens) :])

    def num_bytes(self, state: _State) -> int:
        """See `Scorer.num_bytes`."""
        return state.cache.num_bytes

    def close(self, state: _State) -> None:
        """See `Scorer.close`; the cache goes with the state."""

    def _append(self, state: _State, token: int) -> Scores:
        hidden, rows = self._model.forward(state.cache, [token])
        state.cache.keep(rows.slot_list)
        return self._scores(hidden)

    def _scores(self, hidden: Tensor) -> Scores:
        return Scores(self._model.logits(hidden).float(), hidden.float())
