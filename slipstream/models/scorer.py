"""The interface of draft models: scores after a prefix, then after tree nodes, or whole chains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.policy.options import EAGLE
from slipstream.core.policy.stop import Calibration, Stop
from slipstream.core.sequence import common_prefix
from slipstream.core.types import NodeStats, SamplingParams, SparseDistribution
from slipstream.core.verify.noise import Floats

if TYPE_CHECKING:
    from slipstream.models.kv.pool import KvLayout, KvPool

NUM_SINKS = 128
"""First positions of a text that are always read: attention that finds nothing of use goes there
(Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks")."""
WINDOW = 256
"""Newest tokens that are read of a longer text, unless a draft's option differs."""
EAGLE_WINDOW = 2048
"""Newest tokens that an EAGLE-3 head reads of a longer text: it has keys of its own alone."""
NUM_NEWEST = 64
"""Newest tokens of a prompt that a draft computes, behind the first `NUM_SINKS`: of those between
them it reads the target's keys and values alone."""


def usual_window(draft: str) -> int:
    """Return how many of the newest tokens a draft by name reads of a longer text."""
    return EAGLE_WINDOW if draft.startswith(EAGLE) else WINDOW


def read(tokens: Sequence[int], skipped: int) -> Sequence[int]:
    """Return the tokens of a text without so many behind the first `NUM_SINKS`."""
    return [*tokens[:NUM_SINKS], *tokens[NUM_SINKS + skipped :]] if skipped else tokens


def target_place(place: int, lead: int) -> int:
    """Return a token's place among keys that have `lead` more behind the first `NUM_SINKS`."""
    return place + lead if place >= NUM_SINKS else place


def num_skipped(count: int, window: int) -> int:
    """Return how many of `count` positions are between the sinks and the newest `window`."""
    return max(count - window - NUM_SINKS, 0)


def skippable(count: int, window: int) -> range:
    """Return how many of `count` positions may be left out: none up to twice the window, or if it
    is 0; else at most twice the window is read, and the last number leaves just the window."""
    least, most = num_skipped(count, 2 * window), num_skipped(count, window)
    return range(least, most + 1) if window and least else range(1)


@dataclass(slots=True)
class Scores:
    """Raw scores of R slots: `logits` [R, V_d], `hidden` [R, d] after the final norm; float32.
    `features` [R, d] are what the next step of an EAGLE-3 head reads, where they were computed."""

    logits: Floats
    hidden: Floats
    features: Any | None = None


@dataclass(frozen=True, slots=True)
class KvView:
    """The target's keys and values as a draft may read them: positions 0..count-1, no further.

    `layers` maps a target layer to a buffer [2 * kv_heads, slots, head_dim], keys before values,
    keys after rotary embedding, and a hidden state's number to one [2, slots, hidden / 2], see
    `KvLayout`. Positions lie on `pages` of it, or in order where they are None.
    Behind the first `NUM_SINKS` positions `skipped` ones are left out.
    """

    count: int
    layers: Mapping[int, Any]
    skipped: int = 0
    pages: Sequence[int] | None = None

    @property
    def num_held(self) -> int:
        """Positions that are there."""
        return self.count if self.count < NUM_SINKS else self.count - self.skipped

    def lag(self, num_tokens: int) -> int:
        """Return how many positions before the last of so many tokens are not there yet: all where
        the text ends among those that are left out."""
        if self.skipped and num_tokens <= NUM_SINKS + self.skipped:
            return num_tokens
        return num_tokens - 1 - self.count


@dataclass(frozen=True, slots=True)
class Sync:
    """Request to hold exactly `tokens`, any tree dropped; scores [1] behind the last.

    Tokens are those that are read: without the positions that the state skips.
    Where `is_scored` is False nothing is scored: a part of a long prefix, with more to come.
    """

    state: Any
    tokens: Sequence[int]
    view: KvView | None
    is_scored: bool = True

    @property
    def num_seen(self) -> int:
        """Positions of the view that its tokens may read."""
        if (view := self.view) is None:
            return 0
        return min(view.num_held, target_place(len(self.tokens), self.state.skipped - view.skipped))


@dataclass(frozen=True, slots=True)
class Grow:
    """Request to append tree nodes below earlier ones (-1: the last token); their scores [R]."""

    state: Any
    tokens: Sequence[int]
    parents: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """Request to hold exactly `tokens` and to follow the best candidates behind them.

    Up to `limit` positions of `num_candidates` each; a chain ends behind one of the tokens `ends`,
    and where `stop` ends it. `lag` is the number of tokens by which the view lags behind. `text` is
    the whole session, also what is not read.
    """

    state: Any
    tokens: Sequence[int]
    view: KvView | None
    sampling: SamplingParams
    stop: Stop
    limit: int
    num_candidates: int
    ends: frozenset[int] = frozenset()
    calibration: Calibration = field(default_factory=Calibration)
    lag: int = 0
    is_scored: bool = False
    min_path_prob: float | None = None
    """Least probability of the whole path for one more token on it."""
    text: Sequence[int] = ()

    @property
    def sync(self) -> Sync:
        """The part that any draft model takes."""
        return Sync(self.state, self.tokens, self.view)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The draft's candidates for one position, the best or the first drawn first, and numbers of
    their distribution."""

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    top_prob: float
    entropy: float
    score: float | None = None
    distribution: SparseDistribution | None = None

    def stats(self, token: int) -> NodeStats:
        """Return the statistics of the node that carries `token` here."""
        prob = self.probs[self.tokens.index(token)]
        return NodeStats(self.top_prob, prob, self.entropy, self.score)


class Chains(Protocol):
    """Computation of whole chains at once.

    Candidates are ranked by logits and temperature alone: where a request truncates its
    distribution, a chain may name a token that it leaves out.
    """

    max_new_tokens: int
    """Tokens of a prefix that a chain takes in; the caller syncs more before."""
    max_ends: float
    """Most tokens that may end a chain."""

    def prepare(self, pool: "KvPool") -> None:
        """See `Scorer.prepare`."""

    def follow(self, asks: Sequence[ChainRequest]) -> list[list[Candidates]]:
        """Return the positions of each chain. Raises as `Scorer.score`."""


Ask = Sync | Grow


class Scorer(Protocol):
    """A draft model that scores prefixes and grows token trees behind them, of many sessions."""

    vocab: NDArray[np.int64] | None
    """[V_d] int64, target id of each column, ascending; None for the target's vocabulary."""
    hidden_size: int
    """Width d of the hidden states."""
    max_lag: int | None
    """Largest staleness + depth the weights were trained for; None for no limit."""
    context_length: int | None
    """Most tokens of a session, a path behind them included; None for the target's limit."""
    layout: "KvLayout"
    """Shape of its own keys and values."""
    mirrored: "KvLayout | None" = None
    """Shape of what it reads of the target; None for nothing."""

    def pool(self, num_pages: int) -> "KvPool":
        """Memory for the states of an engine's sessions."""

    def prepare(self, pool: "KvPool") -> None:
        """Make ready what would take its time within requests, over a pool that nothing uses."""

    def open(self, capacity: int, pool: "KvPool | None" = None) -> Any:
        """State of one session with room for `capacity` tokens, tree nodes included.

        In `pool`, or in memory of its own. Raises `CapacityError` for more than there is room for.
        """

    def skip(self, state: Any, skipped: int) -> None:
        """Leave out so many positions of the state behind the first `NUM_SINKS`."""

    def num_unread(self, view: KvView, num_prompt_tokens: int) -> int:
        """Return how many tokens are left out: of the prompt the draft itself reads few."""
        return max(view.skipped, num_skipped(num_prompt_tokens, NUM_NEWEST))

    def num_same(self, state: Any, tokens: Sequence[int]) -> int:
        """Leading tokens of `tokens` that the state holds, so that no `Sync` computes them."""
        return common_prefix(state.tokens, list(tokens))

    def check(self, ask: Ask) -> None:
        """Raise `InvalidRequest`, `CapacityError` or `ModelMismatch` for an impossible request."""

    def score(self, asks: Sequence[Ask]) -> Scores:
        """Return the scores of all requests in order, in one pass.

        No two are of one state, and all states are of one pool. A row may differ in the last
        bit with the others of the pass: what is drafted decides only how far a round reaches.
        Raises what `check` does, before anything is changed; after anything else no state of
        the pass is of use again.
        """

    def num_bytes(self, state: Any) -> int:
        """Bytes of the state's own keys and values."""
        return int(state.cache.num_bytes)

    def close(self, state: Any) -> None:
        """Free the state; it cannot be used afterwards."""
        state.cache.close()


def check_ask(ask: Ask, parents: Sequence[int], num_synced: int) -> None:
    """Raise `InvalidRequest` for an empty prefix, and for nodes that don't fit below a tree with
    these `parents`."""
    if isinstance(ask, Sync):
        if not ask.tokens:
            raise InvalidRequest("a draft cannot score an empty prefix")
        return
    if not ask.tokens or len(ask.tokens) != len(ask.parents):
        raise InvalidRequest(
            f"{len(ask.tokens)} tokens with {len(ask.parents)} parents: give one parent per token,"
            " at least one"
        )
    if not num_synced:
        raise InvalidRequest("a tree needs a prefix: sync before growing")
    old = len(parents)
    if min(ask.parents) < -1 or max(ask.parents) >= old:
        raise InvalidRequest(f"parents {list(ask.parents)} must lie within -1..{old - 1}")


def check_room(needed: int, limit: int) -> None:
    """Raise `CapacityError` for more tokens than a session has room for."""
    if needed > limit:
        raise CapacityError(f"the draft's session has room for {limit} tokens, {needed} are needed")


def on_host(values: Any) -> Floats:
    """Return values [...] as an array of float32 on the host."""
    return values if isinstance(values, np.ndarray) else np.asarray(values.detach().float().cpu())
