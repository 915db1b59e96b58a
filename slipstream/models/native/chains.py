"""Whole chains of drafts, by one call of native code for all their steps; see `src/chain.h`."""

import math
from array import array
from collections.abc import Sequence
from ctypes import addressof, c_float
from itertools import chain
from typing import Any

import numpy as np

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.models.decision import DecisionModel
from slipstream.models.glide.glide_scorer import GlideScorer, GlideState
from slipstream.models.kv.pool import KvPool
from slipstream.models.native.glide import NativeGlide
from slipstream.models.native.library import ChainState, Decision, RankedRows
from slipstream.models.native.weights import as_float32
from slipstream.models.scorer import Candidates, ChainRequest

_NUM_STATS = 4
_NUM_NOISY = 128
"""Tokens whose noise makes them possible draws, outside of the head: each is scored by itself."""
_NUM_NEWEST = 1024
"""Newest tokens of a text that are scored where the head lacks them: names come again."""


class NativeChains:
    """Follows chains with a draft, in its own memory of keys and values."""

    max_new_tokens = 256
    max_ends = math.inf

    def __init__(self, scorer: GlideScorer, decision: DecisionModel | None = None) -> None:
        assert isinstance(scorer.backend, NativeGlide), "torch has chains of its own"
        self._scorer, self._draft = scorer, scorer.backend
        self._ids = np.ascontiguousarray(scorer.vocab, np.int64)
        self._ids_address = self._ids.ctypes.data
        self._inside = frozenset(self._ids.tolist())
        weights = () if decision is None else decision.weights
        names = ("hidden.weight", "hidden.bias", "stats.weight", "out.weight")
        self._weights = [as_float32(weights[name]) for name in names] if weights else []
        addresses = [own.ctypes.data for own in self._weights]
        self._decision = Decision(len(self._weights[1]) - 2, *addresses) if weights else None

    def prepare(self, pool: KvPool) -> None:
        pass

    def follow(self, asks: Sequence[ChainRequest]) -> list[list[Candidates]]:
        syncs = [ask.sync for ask in asks]
        for sync in syncs:
            self._scorer.check(sync)
        batch, cross = self._draft.laid_out(self._scorer.steps(syncs))
        lists = [
            (array("d", ask.calibration.points), array("q", ask.ends), self._others(ask))
            for ask in asks
        ]
        chains = (ChainState * len(asks))(*map(_chain, asks, lists))
        stride = max(ask.limit for ask in asks)
        cross.make_outputs(len(asks) * stride)
        count = min(max(ask.num_candidates for ask in asks), len(self._ids))
        width = _NUM_STATS + 2 * count
        rows = (c_float * (len(asks) * stride * width))()
        num_noisy = _NUM_NOISY if self._draft.scores_others else 0
        ranked = RankedRows(self._ids_address, count, addressof(rows), num_noisy)
        pool = asks[0].state.cache.pool
        own = (self._decision, chains, stride, ranked)
        self._draft.model.follow(pool, batch, cross, len(asks), *own)
        each = np.frombuffer(memoryview(rows), np.float32).reshape(len(asks), stride, width)
        return [
            [_position(row, count, ask.num_candidates) for row in found[: state.length].tolist()]
            for found, ask, state in zip(each, asks, chains, strict=True)
        ]

    def _others(self, ask: ChainRequest) -> "array[int]":
        """Return the tokens of a session's text that the head lacks; of a text that only grows, new
        ones are added."""
        state: GlideState = ask.state
        if not self._draft.scores_others:
            return array("q")
        if state.others is None or len(state.others) > _NUM_NEWEST:
            state.others, state.num_known = array("q"), len(ask.text) - _NUM_NEWEST
        for token in ask.text[max(state.num_known, 0) :]:
            if token not in self._inside and token not in state.others:
                state.others.append(token)
        state.num_known = len(ask.text)
        return state.others


def _position(row: list[float], count: int, most: int) -> Candidates:
    """Return a position out of its row: see `RankedRows` in `src/model.h`."""
    entropy, log_best, _, score = row[:_NUM_STATS]
    tokens = [int(token) for token in row[_NUM_STATS : _NUM_STATS + min(count, most)] if token >= 0]
    probs = row[_NUM_STATS + count :][: len(tokens)]
    decided = None if math.isnan(score) else score
    return Candidates(tuple(tokens), tuple(probs), math.exp(log_best), entropy, decided)


def _chain(ask: ChainRequest, lists: Sequence["array[Any]"]) -> ChainState:
    """Return a chain with its calibration, ends and other tokens, which native code reads."""
    stop, sampling = ask.stop, ask.sampling
    return ChainState(
        *(ask.limit, stop.max_depth, ask.lag, ask.is_scored),
        *(stop.number, stop.threshold, stop.fallback, ask.min_path_prob or 0.0),
        *chain.from_iterable(own.buffer_info() for own in lists),
        *(not sampling.is_greedy, len(ask.tokens) + ask.state.skipped, sampling.seed),
        1.0 if sampling.is_greedy else SHARPNESS / sampling.temperature,
        1.0,
    )
