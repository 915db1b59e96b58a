"""Whole chains of many sessions in one pass, on the host: requests become two vectors for
`glide_chain.py`, and one vector comes back."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from slipstream.core.policy.stop import MAX_DRAFT_TOKENS, Stop
from slipstream.core.types import SamplingParams
from slipstream.core.verify.draws import draw_keys, is_plain_softmax
from slipstream.models.cuda.buckets import fit, key_widths, powers
from slipstream.models.cuda.graphs import Replay
from slipstream.models.decision import DecisionModel
from slipstream.models.glide.chain_stop import network_of
from slipstream.models.glide.glide_chain import MAX_ENDS, ChainBody, ChainModel, ChainShape
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.glide_torch import TorchGlide
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.memory import temporary_bytes
from slipstream.models.scorer import ChainPosition, ChainRequest, Rule, rule_of

T = TypeVar("T")
_DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, MAX_DRAFT_TOKENS)
_MAX_SESSIONS = 256
_SPARE = 4
"""Memory for staged keys comes in powers of two, and smaller ones stay: at most so many times the
need."""


class GlideChains:
    """Follows chains with a GliDe draft, all of one pool, in fixed shapes."""

    max_new_tokens = 32
    keeps_nodes = False

    def __init__(
        self,
        scorer: GlideScorer,
        replay: Replay,
        *,
        context_length: int,
        decision: DecisionModel | None = None,
    ) -> None:
        """Positions are below `context_length`."""
        length = context_length + MAX_DRAFT_TOKENS + BLOCK_SIZE
        config, draft, self._check = scorer.config, scorer.backend, scorer.check
        assert isinstance(draft, TorchGlide), "native code follows no chains"
        self._draft, device = draft, draft.embeddings.device
        network = None if decision is None else network_of(decision, device)
        self._model = ChainModel(draft, draft.rope(length), network)
        self._layers = config.target_layers
        self._kv_shape = (2 * config.num_kv_heads, config.head_dim)
        self._widths = key_widths(length)
        self.replay = replay
        self._max_bytes = temporary_bytes(scorer.layout.device) // _SPARE
        self._memory: Sequence[Tensor] = ()
        self._stages: dict[tuple[int, int], list[Tensor]] = {}

    def fits(self, sampling: SamplingParams, stop: Stop, ends: frozenset[int]) -> bool:
        """Return whether such a chain can be followed here: logits and a temperature give the
        distribution, the policy is known, and few tokens end it."""
        return is_plain_softmax(sampling) and rule_of(stop) is not None and len(ends) <= MAX_ENDS

    @torch.inference_mode()
    def follow(self, asks: Sequence[ChainRequest]) -> list[list[ChainPosition]]:
        """Return the positions of each chain, in one pass and one transfer if their keys fit the
        memory for them.

        The states hold the requests' tokens then, and no tree. Raises as `GlideScorer.score`.
        """
        for ask in asks:
            self._check(ask.sync)
        return [found for group in self._groups(asks) for found in self._follow(*group)]

    def _groups(
        self, asks: Sequence[ChainRequest]
    ) -> list[tuple[Sequence[ChainRequest], tuple[int, int]]]:
        extents = self._extents(asks)
        if len(asks) == 1 or self._num_bytes(*extents) <= self._max_bytes:
            return [(asks, extents)]
        middle = len(asks) // 2
        return self._groups(asks[:middle]) + self._groups(asks[middle:])

    def _num_bytes(self, sessions: int, seen: int) -> int:
        """Bytes of the target's keys and values, which are copied."""
        position = math.prod(self._kv_shape) * self._draft.embeddings.itemsize
        return sessions * len(self._layers) * seen * position

    def _follow(
        self, asks: Sequence[ChainRequest], extents: tuple[int, int]
    ) -> list[list[ChainPosition]]:
        starts = [ask.state.begin(ask.tokens, ask.view) for ask in asks]
        shape = self._shape(asks, starts, extents)
        pool = asks[0].state.cache.pool
        stage = self._stage(shape)
        # Padding writes the first session's keys once more: it has to read what that one reads.
        for row, ask in enumerate([*asks, *[asks[0]] * (shape.sessions - len(asks))]):
            self._fill(stage, row * shape.seen, ask)
        own = [_integers(*both, shape) for both in zip(asks, starts, strict=True)]
        reals, spare = [_doubles(ask, shape) for ask in asks], shape.sessions - len(asks)
        inputs = (
            torch.tensor(own + own[:1] * spare),
            torch.tensor(reals + reals[:1] * spare, dtype=torch.float64),
        )
        body = ChainBody(self._model, shape, pool, stage)
        (out,) = self.replay.run((id(pool), shape), body, inputs)
        table = out[: len(asks)].tolist()
        return [_found(row, ask, shape) for row, ask in zip(table, asks, strict=True)]

    def _shape(
        self, asks: Sequence[ChainRequest], starts: Sequence[int], extents: tuple[int, int]
    ) -> ChainShape:
        news = [len(ask.tokens) - start for ask, start in zip(asks, starts, strict=True)]
        sessions, seen = extents
        points = max(len(ask.calibration.points) for ask in asks)
        most = max(ask.num_candidates for ask in asks)
        return ChainShape(
            sessions=sessions,
            rows=fit(max(news), powers(self.max_new_tokens), what="new tokens of a chain"),
            depth=_depth(asks),
            width=self._widths[-1],
            seen=seen,
            candidates=min(most, len(self._draft.vocab)),
            points=fit(points, powers(1024), what="points of a calibration"),
            is_sampled=not all(ask.sampling.is_greedy for ask in asks),
            is_scored=self._model.decision is not None and any(ask.is_scored for ask in asks),
        )

    def _extents(self, asks: Sequence[ChainRequest]) -> tuple[int, int]:
        """Return the sessions, and keys of the target, of a shape."""
        return (
            fit(len(asks), powers(_MAX_SESSIONS), what="chains at once"),
            fit(max(ask.sync.num_seen for ask in asks), self._widths, what="keys of the target"),
        )

    def _stage(self, shape: ChainShape) -> list[Tensor]:
        """Return where a shape's chains read the target's keys: graphs need it to stay. Shapes
        share one memory, since each run fills its own first."""
        key = (shape.sessions, shape.seen)
        if key not in self._stages:
            heads, dim = self._kv_shape
            size = (heads, shape.sessions * shape.seen, dim)
            count = math.prod(size)
            if not self._memory or self._memory[0].numel() < count:
                like, length = self._draft.embeddings, 1 << (count - 1).bit_length()
                self._memory = [like.new_zeros(length) for _ in self._layers]
            self._stages[key] = [tensor[:count].view(size) for tensor in self._memory]
        return self._stages[key]

    def _fill(self, stage: Sequence[Tensor], start: int, ask: ChainRequest) -> None:
        count = ask.sync.num_seen
        if ask.view is None or not count:
            return
        for into, layer in zip(stage, self._layers, strict=True):
            for part, given in zip(into.chunk(2), ask.view.layers[layer], strict=True):
                part[:, start : start + count].copy_(given[:, :count], non_blocking=True)


def _depth(asks: Sequence[ChainRequest]) -> int:
    return fit(max(ask.limit for ask in asks), _DEPTHS, what="tokens of a chain")


def _rule(ask: ChainRequest) -> Rule:
    rule = rule_of(ask.stop)
    assert rule is not None, "the caller has asked whether the chain fits"
    return rule


def _integers(ask: ChainRequest, start: int, shape: ChainShape) -> list[int]:
    """Return a session's part of `ChainInputs`, in its order."""
    rule, state, count = _rule(ask), ask.state, len(ask.tokens)
    pages, num_pages = state.cache.pages, shape.width // BLOCK_SIZE
    positions = range(count + state.skipped, count + state.skipped + shape.depth)
    noise = [draw_keys(ask.sampling, place) for place in positions] if shape.is_sampled else []
    return [
        *(state.skipped, state.lead, start, count - start, ask.sync.num_seen, ask.lag, ask.limit),
        *(rule.policy, rule.max_depth, len(ask.calibration.points), int(ask.is_scored)),
        *_padded(ask.tokens[start:], shape.rows, 0),
        *_padded(sorted(ask.ends), MAX_ENDS, -1),
        *_padded(pages[:num_pages], num_pages, state.cache.pool.num_pages),
        *chain.from_iterable(noise),
    ]


def _doubles(ask: ChainRequest, shape: ChainShape) -> list[float]:
    rule = _rule(ask)
    limits = (rule.threshold, rule.fallback, ask.min_path_prob or 0.0)
    points = _padded(ask.calibration.points, shape.points, 0.0)
    return [ask.sampling.temperature, *limits, *points]


def _found(row: Sequence[float], ask: ChainRequest, shape: ChainShape) -> list[ChainPosition]:
    """Return a chain's positions out of its numbers; see `ChainBody`."""
    size, count = shape.num_outputs, min(ask.num_candidates, shape.candidates)
    found = []
    for depth in range(int(row[-2])):
        entropy, top_prob, score, *rest = row[depth * size : (depth + 1) * size]
        tokens = tuple(int(token) for token in rest[:count])
        probs = tuple(rest[shape.candidates : shape.candidates + count])
        is_scored = ask.is_scored and shape.is_scored and not math.isnan(score)
        found.append(ChainPosition(tokens, probs, top_prob, entropy, score if is_scored else None))
    return found


def _padded(values: Sequence[T], size: int, filler: T) -> list[T]:
    return [*values, *[filler] * (size - len(values))]


def device_chains(
    scorer: GlideScorer, context_length: int, decision: DecisionModel | None
) -> GlideChains:
    """Return the chains of a scorer on a device."""
    replay = Replay(torch.device(scorer.layout.device))
    return GlideChains(scorer, replay, context_length=context_length, decision=decision)
