"""Whole chains of drafts, by one call of native code for all their steps; see `src/chain.h`."""

import math
from collections.abc import Sequence

import numpy as np

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.core.verify.draws import draw_keys
from slipstream.models.decision import DecisionModel
from slipstream.models.dtypes import Array
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.kv.pool import KvPool
from slipstream.models.native.glide import NativeGlide
from slipstream.models.native.library import ChainState, Decision, RankedRows
from slipstream.models.native.weights import as_float32
from slipstream.models.scorer import ChainPosition, ChainRequest

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
        self._inside = frozenset(self._ids.tolist())
        weights = () if decision is None else decision.weights
        names = ("hidden.weight", "hidden.bias", "stats.weight", "out.weight")
        self._weights = [as_float32(weights[name]) for name in names] if weights else []
        addresses = [own.ctypes.data for own in self._weights]
        self._decision = Decision(len(self._weights[1]) - 2, *addresses) if weights else None

    def prepare(self, pool: KvPool) -> None:
        pass

    def follow(self, asks: Sequence[ChainRequest]) -> list[list[ChainPosition]]:
        for ask in asks:
            self._scorer.check(ask.sync)
        batch, cross = self._draft.laid_out(self._scorer.steps([ask.sync for ask in asks]))
        arrays = [self._arrays(ask) for ask in asks]
        chains = (ChainState * len(asks))(*map(_chain, asks, arrays))
        stride = max(ask.limit for ask in asks)
        cross.make_outputs(len(asks) * stride)
        count = min(max(ask.num_candidates for ask in asks), len(self._ids))
        rows = np.empty((len(asks), stride, _NUM_STATS + 2 * count), np.float32)
        num_noisy = _NUM_NOISY if self._draft.scores_others else 0
        ranked = RankedRows(self._ids.ctypes.data, count, rows.ctypes.data, num_noisy)
        pool = asks[0].state.cache.pool
        own = (self._decision, chains, stride, ranked)
        self._draft.model.follow(pool, batch, cross, len(asks), *own)
        return [
            [_position(row, count, ask.num_candidates) for row in found[: state.length].tolist()]
            for found, ask, state in zip(rows, asks, chains, strict=True)
        ]

    def _arrays(self, ask: ChainRequest) -> tuple[Array, ...]:
        """Return a chain's calibration, ends, tokens of its text that the head lacks, and keys of
        noise, which native code reads."""
        count, sampling = len(ask.tokens) + ask.state.skipped, ask.sampling
        places = range(0 if sampling.is_greedy else ask.limit)
        keys = [draw_keys(sampling, count + place) for place in places]
        others = {*ask.text[-_NUM_NEWEST:]} - self._inside if self._draft.scores_others else ()
        ends, tokens = (np.array([*own], np.int64) for own in (ask.ends, others))
        return np.array(ask.calibration.points), ends, tokens, np.array(keys, np.int32)


def _position(row: list[float], count: int, most: int) -> ChainPosition:
    """Return a position out of its row: see `RankedRows` in `src/model.h`."""
    entropy, log_best, _, score = row[:_NUM_STATS]
    tokens = [int(token) for token in row[_NUM_STATS : _NUM_STATS + min(count, most)] if token >= 0]
    probs = row[_NUM_STATS + count :][: len(tokens)]
    decided = None if math.isnan(score) else score
    return ChainPosition(tuple(tokens), tuple(probs), math.exp(log_best), entropy, decided)


def _chain(ask: ChainRequest, arrays: Sequence[Array]) -> ChainState:
    stop, sampling = ask.stop, ask.sampling
    points, ends, others, keys = (own.ctypes.data if len(own) else None for own in arrays)
    return ChainState(
        *(ask.limit, stop.max_depth, ask.lag, ask.is_scored),
        *(stop.number, stop.threshold, stop.fallback, ask.min_path_prob or 0.0),
        *(points, len(arrays[0]), ends, len(arrays[1]), others, len(arrays[2]), keys),
        1.0 if sampling.is_greedy else SHARPNESS / sampling.temperature,
        1.0,
    )
