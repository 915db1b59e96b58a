"""Whole chains of many sessions in one pass, on the host: requests become two vectors for
`glide_chain.py`, and one vector comes back."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.core.policy.stop import MAX_DRAFT_TOKENS, Stop
from slipstream.core.types import SamplingParams
from slipstream.core.verify.draws import draw_keys, is_plain_softmax
from slipstream.models.cuda.buckets import fit, key_widths, powers
from slipstream.models.cuda.graphs import Replay
from slipstream.models.decision import DecisionModel
from slipstream.models.glide.chain_stop import Rule, network_of, rule_of
from slipstream.models.glide.glide_chain import MAX_ENDS, ChainBody, ChainModel, ChainShape
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.glide_torch import TorchGlide
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.memory import temporary_bytes
from slipstream.models.scorer import MAX_NEW_TOKENS, ChainPosition, ChainRequest
from slipstream.models.torch.arrays import as_tensor

_DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, MAX_DRAFT_TOKENS)
_MAX_SESSIONS = 256
Extents = tuple[int, int, int]
"""Sessions, own positions and keys of the target of a shape."""
_SPARE = 4
"""Memory for staged keys comes in powers of two, and smaller ones stay: at most so many times the
need."""


class GlideChains:
    """Follows chains with a GliDe draft, all of one pool, in fixed shapes."""

    def __init__(
        self,
        scorer: GlideScorer,
        *,
        context_length: int,
        decision: DecisionModel | None = None,
    ) -> None:
        """Positions are below `context_length`."""
        length = context_length + MAX_DRAFT_TOKENS + BLOCK_SIZE
        config = scorer.config
        group = config.num_heads // config.num_kv_heads
        self._check = scorer.check
        torch_pass, device = scorer.computed, torch.device(scorer.layout.device)
        assert isinstance(torch_pass, TorchGlide), "native code has no such parts"
        vocab = as_tensor(scorer.vocab).to(device)
        own = None if decision is None else network_of(decision, device)
        self._model = ChainModel(torch_pass.parts(length), vocab, group, own)
        self._layers = config.target_layers
        self._kv_shape = (2 * config.num_kv_heads, config.head_dim)
        self._widths = key_widths(length)
        self.replay = Replay(device)
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
        return [chain for group in self._groups(asks) for chain in self._follow(*group)]

    def _groups(self, asks: Sequence[ChainRequest]) -> list[tuple[Sequence[ChainRequest], Extents]]:
        extents = self._extents(asks)
        if len(asks) == 1 or self._num_bytes(*extents) <= self._max_bytes:
            return [(asks, extents)]
        middle = len(asks) // 2
        return self._groups(asks[:middle]) + self._groups(asks[middle:])

    def _num_bytes(self, sessions: int, width: int, seen: int) -> int:
        """Bytes of the target's keys and values, and of the draft's own, gathered and copied."""
        heads, dim = self._kv_shape
        positions = len(self._layers) * seen + 2 * len(self._model.parts.layers) * width
        return sessions * positions * heads * dim * self._model.parts.embeddings.itemsize

    def _follow(self, asks: Sequence[ChainRequest], extents: Extents) -> list[list[ChainPosition]]:
        starts = [ask.state.begin(ask.tokens) for ask in asks]
        shape = self._shape(asks, starts, extents)
        pool = asks[0].state.cache.pool
        stage = self._stage(shape)
        # Padding writes the first session's keys once more: it has to read what that one reads.
        for row, ask in enumerate([*asks, *[asks[0]] * (shape.sessions - len(asks))]):
            self._fill(stage, row, ask)
        inputs = (
            torch.tensor(_integers(asks, starts, shape)),
            torch.tensor(_doubles(asks, shape), dtype=torch.float64),
        )
        body = ChainBody(self._model, shape, pool, stage)
        (out,) = self.replay.run((id(pool), shape), body, inputs)
        table = out[: len(asks)].tolist()
        return [_found(row, ask, shape) for row, ask in zip(table, asks, strict=True)]

    def _shape(
        self, asks: Sequence[ChainRequest], starts: Sequence[int], extents: Extents
    ) -> ChainShape:
        news = [len(ask.tokens) - start for ask, start in zip(asks, starts, strict=True)]
        sessions, width, seen = extents
        points = max(len(ask.calibration.points) for ask in asks)
        most = max(ask.num_candidates for ask in asks)
        return ChainShape(
            sessions=sessions,
            rows=fit(max(news), powers(MAX_NEW_TOKENS), what="new tokens of a chain"),
            depth=_depth(asks),
            width=width,
            seen=seen,
            candidates=min(most, len(self._model.vocab)),
            points=fit(points, powers(1024), what="points of a calibration"),
            is_sampled=not all(ask.sampling.is_greedy for ask in asks),
            is_scored=self._model.decision is not None and any(ask.is_scored for ask in asks),
        )

    def _extents(self, asks: Sequence[ChainRequest]) -> Extents:
        width = max(len(ask.tokens) for ask in asks) + _depth(asks)
        return (
            fit(len(asks), powers(_MAX_SESSIONS), what="chains at once"),
            fit(width, self._widths, what="positions of a chain"),
            fit(max(map(_num_seen, asks)), self._widths, what="keys of the target"),
        )

    def _stage(self, shape: ChainShape) -> list[Tensor]:
        """Return where a shape's chains read the target's keys: graphs need it to stay. Shapes
        share one memory, since each run fills its own first."""
        key = (shape.sessions, shape.seen)
        if key not in self._stages:
            heads, dim = self._kv_shape
            size = (shape.sessions, heads, shape.seen, dim)
            count = math.prod(size)
            if not self._memory or self._memory[0].numel() < count:
                like, length = self._model.parts.embeddings, 1 << (count - 1).bit_length()
                self._memory = [like.new_zeros(length) for _ in self._layers]
            self._stages[key] = [tensor[:count].view(size) for tensor in self._memory]
        return self._stages[key]

    def _fill(self, stage: Sequence[Tensor], row: int, ask: ChainRequest) -> None:
        count, half = _num_seen(ask), self._kv_shape[0] // 2
        if ask.view is None or not count:
            return
        for into, layer in zip(stage, self._layers, strict=True):
            keys, values = ask.view.layers[layer]
            into[row, :half, :count].copy_(keys[:, :count], non_blocking=True)
            into[row, half:, :count].copy_(values[:, :count], non_blocking=True)


def _depth(asks: Sequence[ChainRequest]) -> int:
    return fit(max(ask.limit for ask in asks), _DEPTHS, what="tokens of a chain")


def _num_seen(ask: ChainRequest) -> int:
    return 0 if ask.view is None else min(ask.view.num_held, len(ask.tokens))


def _rule(ask: ChainRequest) -> Rule:
    rule = rule_of(ask.stop)
    assert rule is not None, "the caller has asked whether the chain fits"
    return rule


def _integers(asks: Sequence[ChainRequest], starts: Sequence[int], shape: ChainShape) -> list[int]:
    """Return the parts of `ChainInputs` in order; padding repeats the first session."""
    spare = shape.sessions - len(asks)
    every = [*zip(asks, starts, strict=True), *[(asks[0], starts[0])] * spare]
    rules = [_rule(ask) for ask, _ in every]
    values: list[int] = []
    for ask, start in every:
        values += _padded(ask.tokens[start:], shape.rows, 0)
    values += [ask.state.skipped for ask, _ in every]
    values += [start for _, start in every]
    values += [len(ask.tokens) - start for ask, start in every]
    values += [_num_seen(ask) for ask, _ in every]
    values += [ask.lag for ask, _ in every]
    values += [ask.limit for ask, _ in every]
    values += [rule.policy for rule in rules]
    values += [rule.max_depth for rule in rules]
    values += [len(ask.calibration.points) for ask, _ in every]
    values += [int(ask.is_scored) for ask, _ in every]
    for ask, _ in every:
        values += _padded(sorted(ask.ends), MAX_ENDS, -1)
    for ask, _ in every:
        pages = ask.state.cache.pages
        needed = round_up(min(len(ask.tokens), shape.width), BLOCK_SIZE) // BLOCK_SIZE
        values += _padded(pages[:needed], shape.width // BLOCK_SIZE, pages[0])
    if shape.is_sampled:
        for depth in range(shape.depth):
            for ask, _ in every:
                values += draw_keys(ask.sampling, len(ask.tokens) + ask.state.skipped + depth)
    return values


def _doubles(asks: Sequence[ChainRequest], shape: ChainShape) -> list[float]:
    every = [*asks, *[asks[0]] * (shape.sessions - len(asks))]
    rules = [_rule(ask) for ask in every]
    values = [ask.sampling.temperature for ask in every]
    values += [rule.threshold for rule in rules]
    values += [rule.fallback for rule in rules]
    values += [ask.min_path_prob or 0.0 for ask in every]
    for ask in every:
        points = ask.calibration.points
        values += [*points, *[0.0] * (shape.points - len(points))]
    return values


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


def _padded(values: Sequence[int], size: int, filler: int) -> list[int]:
    return [*values, *[filler] * (size - len(values))]
