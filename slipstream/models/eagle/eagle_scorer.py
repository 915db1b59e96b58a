"""An EAGLE-3 head behind the `Scorer` seam: which feature each token is read with.

Its own sequence is the text without its first token. Place p has the token p + 1 with the feature
that the target's hidden states at position p give, and its keys have position p.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from slipstream.core.sequence import common_prefix
from slipstream.models.dtypes import Array
from slipstream.models.glide.glide_config import EagleConfig
from slipstream.models.glide.glide_scorer import GlideBackend, GlideScorer, GlideState, SessionStep
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout
from slipstream.models.scorer import Ask, Grow, KvView, Scores


@dataclass(slots=True)
class EagleState(GlideState):
    """A session's state: `tokens` are those of the text behind `first`, of which the first
    `num_true` were read with states of the target. `outputs` are the features that the last token
    and the tree's nodes gave."""

    first: int | None = None
    num_true: int = 0
    outputs: list[Any] = field(default_factory=list)

    def num_same(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of a text without its first need no computing."""
        is_same = bool(tokens) and tokens[0] == self.first
        return min(common_prefix(self.tokens, list(tokens[1:])), self.num_true) if is_same else 0

    def begin(self, tokens: Sequence[int], view: KvView | None) -> int:
        """Hold a text without a tree; the place that is computed first: that of the last token at
        most, and of the last whose states are there."""
        # A text of one token has no pair: its token is read with nothing, until more is there.
        own = list(tokens[1:] or tokens)
        seen = 0 if view is None or len(tokens) < 2 else min(view.num_held, len(own))
        start = min(self.num_same(tokens), max(seen - 1, 0))
        self.first, self.tokens, self.num_true = tokens[0], own, seen
        self.parents, self.depths, self.is_chain = [], [], True
        return start


class EagleBackend(GlideBackend, Protocol):
    """Computation of a head, whose steps have features and whose scores return them."""

    def fused(self, states: Sequence[Any], slots: Sequence[int]) -> Any:
        """Return features [n, d] of the target's states in slots [n] of one buffer
        [2, slots, target d / 2] for each layer; zeros [1, d] without buffers."""

    def joined(self, rows: Sequence[Any]) -> Any:
        """Return features [n, d] of single ones [d]."""


class EagleScorer(GlideScorer):
    """Scores prefixes and grows token trees with an EAGLE-3 head (see `Scorer`).

    Tokens whose states the view lacks are read one by one, each with what the one before gave, and
    once more when the states are there; so are accepted tokens of a tree. A view has hidden states
    as layers: the one that layer l takes in is number `num_layers` + l.
    """

    config: EagleConfig
    backend: EagleBackend
    state_type = EagleState

    def __init__(
        self,
        config: EagleConfig,
        vocab: Array,
        layout: KvLayout,
        backend: EagleBackend,
        num_layers: int,
    ) -> None:
        """`layout` is that of the head's own keys and values, `num_layers` the target's."""
        super().__init__(config, vocab, layout, backend)
        self.layers = tuple(num_layers + layer for layer in config.target_layers)
        half, own = config.target_hidden_size // 2, (layout.dtype, layout.device)
        self.mirrored = KvLayout(len(self.layers), 1, half, *own)

    def workspace_bytes(self, num_rows: int) -> int:
        states = len(self.layers) * self.config.target_hidden_size
        more = 4 * num_rows * (4 * self.config.hidden_size + 2 * states)
        return super().workspace_bytes(num_rows) + more

    def num_unread(self, view: KvView, num_prompt_tokens: int) -> int:
        return view.skipped

    def num_same(self, state: EagleState, tokens: Sequence[int]) -> int:
        found = state.num_same(tokens)
        return found + 1 if found else 0

    def step(self, ask: Ask) -> SessionStep:
        """Return what a checked request computes first; its state then is as it asks for."""
        state: EagleState = ask.state
        if isinstance(ask, Grow):
            above = [state.outputs[1 + parent] for parent in ask.parents]
            return replace(super().step(ask), features=self.backend.joined(above))
        start = state.begin(ask.tokens, ask.view)
        stop = max(state.num_true, 1)
        # The states that its first tokens are read with, layers in the config's order.
        view, states = ask.view, []
        if view is not None and state.num_true:
            states = [view.layers[layer] for layer in self.layers]
        pages = None if view is None else view.pages
        features = self.backend.fused(states, [_slot(pages, place) for place in range(start, stop)])
        tokens, positions = state.tokens[start:stop], state.positions(start, stop)
        return SessionStep(state, tokens, positions, start, 1, features)

    def steps(self, asks: Sequence[Ask]) -> list[SessionStep]:
        """Return the last step of each checked request; those before it are computed."""
        steps = super().steps(asks)
        while late := [index for index, step in enumerate(steps) if _next_place(step)]:
            features = self.backend.scores([steps[index] for index in late]).features
            assert features is not None, "an EAGLE-3 head gives features"
            for row, index in enumerate(late):
                state, place = steps[index].state, _next_place(steps[index])
                own = state.tokens[place : place + 1], state.positions(place, place + 1)
                steps[index] = SessionStep(state, *own, place, 1, features[row : row + 1])
        return steps

    def score(self, asks: Sequence[Ask]) -> Scores:
        for ask in asks:
            self.check(ask)
        steps = self.steps(asks)
        scores, kept, end = self.backend.scores(steps), list[int](), 0
        assert scores.features is not None, "an EAGLE-3 head gives features"
        for ask, step in zip(asks, steps, strict=True):
            rows = range(end, end := end + step.num_kept)
            state: EagleState = ask.state
            own = [scores.features[row] for row in rows]
            state.outputs = [*state.outputs, *own] if isinstance(ask, Grow) else own
            kept += rows if isinstance(ask, Grow) or ask.is_scored else ()
        if len(kept) == end:
            return scores
        return Scores(scores.logits[kept], scores.hidden[kept], scores.features[kept])


def _next_place(step: SessionStep) -> int:
    """Return the place of the token behind a step of a prefix; 0 where that is the last."""
    end = step.start + len(step.tokens)
    return end if end < len(step.state.tokens) else 0


def _slot(pages: Sequence[int] | None, place: int) -> int:
    return place if pages is None else pages[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
