"""Whole chains of drafts, by one call of native code for all their steps; see `src/chain.h`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.core.policy.stop import Stop
from slipstream.core.types import SamplingParams
from slipstream.core.verify.draws import draw_keys, is_plain_softmax
from slipstream.models.decision import DecisionModel
from slipstream.models.dtypes import Array
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.native.glide import NativeGlide
from slipstream.models.native.library import ChainState, Decision, RankedRows
from slipstream.models.native.weights import as_float32
from slipstream.models.scorer import ChainPosition, ChainRequest, rule_of

_NUM_STATS = 3


class NativeChains:
    """Follows chains with a GliDe draft; their tokens but the last are nodes of the states then."""

    max_new_tokens = 256
    keeps_nodes = True

    def __init__(self, scorer: GlideScorer, decision: DecisionModel | None = None) -> None:
        assert isinstance(scorer.backend, NativeGlide), "torch has chains of its own"
        self._scorer, self._draft = scorer, scorer.backend
        self._ids = np.ascontiguousarray(scorer.vocab, np.int64)
        weights = () if decision is None else decision.weights
        names = ("hidden.weight", "hidden.bias", "stats.weight", "out.weight")
        self._weights = [as_float32(weights[name]) for name in names] if weights else []
        addresses = [own.ctypes.data for own in self._weights]
        self._decision = Decision(len(self._weights[1]) - 2, *addresses) if weights else None

    def fits(self, sampling: SamplingParams, stop: Stop, ends: frozenset[int]) -> bool:
        """Return whether such a chain can be followed: logits and a temperature give the
        distribution, and the policy is known."""
        return is_plain_softmax(sampling) and rule_of(stop) is not None

    def follow(self, asks: Sequence[ChainRequest]) -> list[list[ChainPosition]]:
        """Return the positions of each chain. Raises as `GlideScorer.score`."""
        for ask in asks:
            self._scorer.check(ask.sync)
        batch, cross = self._draft.laid_out([self._scorer.step(ask.sync) for ask in asks])
        arrays = [_arrays(ask) for ask in asks]
        chains = (ChainState * len(asks))(*map(_chain, asks, arrays))
        found = _Found(chains, asks, self._ids)
        self._draft.model.follow(
            asks[0].state.cache.pool,
            batch,
            cross,
            *(self._decision, chains, found.stride, found.candidates, found.scores.ctypes.data),
        )
        for ask, own in zip(asks, chains, strict=True):
            for parent in range(-1, own.length - 2):
                ask.state.append([parent])
        return [found.positions(index) for index in range(len(asks))]


class _Found:
    """Results of chains: of each `stride` rows of candidates, statistics and score."""

    def __init__(self, chains: Any, asks: Sequence[ChainRequest], ids: Array) -> None:
        self.stride = max(ask.limit for ask in asks)
        count = min(max(ask.num_candidates for ask in asks), len(ids))
        num_rows = len(asks) * self.stride
        self._chains, self._asks, self._ids = chains, asks, ids
        self._columns = np.empty((num_rows, count), np.int64)
        self._probs = np.empty((num_rows, count), np.float32)
        self._stats = np.empty((num_rows, _NUM_STATS), np.float32)
        self.scores = np.empty(num_rows, np.float32)
        arrays = (self._columns, self._probs, self._stats)
        self.candidates = RankedRows(ids.ctypes.data, count, *(own.ctypes.data for own in arrays))

    def positions(self, index: int) -> list[ChainPosition]:
        """Return the positions of a chain."""
        count, first = self._asks[index].num_candidates, index * self.stride
        rows = slice(first, first + self._chains[index].length)
        columns = self._columns[rows, :count]
        parts = (self._ids[columns], self._probs[rows, :count], self._stats[rows])
        sizes = (columns >= 0).sum(1).tolist()
        found = zip(sizes, *(own.tolist() for own in (*parts, self.scores[rows])), strict=True)
        return [
            ChainPosition(
                tuple(tokens[:size]),
                tuple(probs[:size]),
                math.exp(stats[1]),
                stats[0],
                None if math.isnan(score) else score,
            )
            for size, tokens, probs, stats, score in found
        ]


def _arrays(ask: ChainRequest) -> tuple[Array, Array, Array]:
    """Return a chain's calibration, ends and keys of noise, which native code reads."""
    count, sampling = len(ask.tokens) + ask.state.skipped, ask.sampling
    places = range(0 if sampling.is_greedy else ask.limit)
    keys = [draw_keys(sampling, count + place) for place in places]
    ends = np.array([*ask.ends], np.int64)
    return np.array(ask.calibration.points), ends, np.array(keys, np.int32)


def _chain(ask: ChainRequest, arrays: Sequence[Array]) -> ChainState:
    rule, sampling = rule_of(ask.stop), ask.sampling
    assert rule is not None, "the caller has asked whether the chain fits"
    points, ends, keys = (own.ctypes.data if len(own) else None for own in arrays)
    return ChainState(
        *(ask.limit, rule.max_depth, ask.lag, ask.is_scored),
        *(rule.policy, rule.threshold, rule.fallback, ask.min_path_prob or 0.0),
        *(points, len(arrays[0]), ends, len(arrays[1]), keys),
        1.0 if sampling.is_greedy else SHARPNESS / sampling.temperature,
        1.0,
    )
