"""The shapes that chains of drafts come in, and what a device is told before one: integers.

Knows no tensors' meaning beyond their places in the vector.
"""

from dataclasses import dataclass

from torch import Tensor

from slipstream.models.pool import KEY_BLOCK

MAX_ENDS = 8
"""Tokens that nothing can follow, a chain at most."""


@dataclass(frozen=True, slots=True, order=True)
class ChainShape:
    """One shape of a chain: `sessions` of up to `rows` new tokens each, `depth` steps, `width` own
    positions, `seen` of the target's, `candidates` a slot, `points` of a calibration."""

    sessions: int
    rows: int
    depth: int
    width: int
    seen: int
    candidates: int
    points: int
    is_sampled: bool
    is_scored: bool


@dataclass(frozen=True, slots=True)
class ChainInputs:
    """What is known of B sessions before the chain, as integers: see `fields`."""

    tokens: Tensor
    starts: Tensor
    counts: Tensor
    num_seen: Tensor
    lags: Tensor
    limits: Tensor
    policies: Tensor
    max_depths: Tensor
    num_points: Tensor
    asks_score: Tensor
    ends: Tensor
    pages: Tensor
    noise: Tensor


def fields(shape: ChainShape) -> tuple[int, ...]:
    """Sizes of the integers' parts, in the order of `ChainInputs`."""
    num = shape.sessions
    singles = (num,) * 9
    noise = 2 * shape.depth * num if shape.is_sampled else 0
    return (
        num * shape.rows,
        *singles,
        num * MAX_ENDS,
        num * (shape.width // KEY_BLOCK),
        noise,
    )


def num_outputs(shape: ChainShape) -> int:
    """Numbers that a session's slot has: entropy, top probability, score, candidates and their
    probabilities."""
    return 3 + 2 * shape.candidates
