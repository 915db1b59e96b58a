"""Rounding of linears to 4-bit blocks with the least change of what they compute.

GPTQ (Frantar et al. 2022, arXiv 2210.17323), which rounds one input after another and has the
inputs that are left make up for each error. Blocks are GGUF's Q4_1: 32 weights of an output, each
a code from 0 to 15, with a scale and a minimum in float16.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.glide.glide_weights import BLOCK

_DAMPING = 0.01
"""Share of the moments' mean diagonal that is added to it, so that it can be inverted."""
_LARGEST = 15
_WIDTHS = tuple(14.1 + 0.05 * step for step in range(37))
"""Numbers of codes that a block's range is divided by, at first."""
_REFINEMENTS = 3
_LEAST = 1e-20


@dataclass(frozen=True, slots=True)
class Q4Matrix:
    """A matrix in Q4_1 blocks: codes [R, C] uint8 from 0 to 15, scales and minima [R, C / 32]
    float16."""

    codes: Tensor
    scales: Tensor
    minima: Tensor

    def weights(self) -> Tensor:
        """Return the weights that the blocks stand for, [R, C] float32."""
        scales, minima = self.scales.float()[..., None], self.minima.float()[..., None]
        found: Tensor = self.codes.float().unflatten(1, (-1, BLOCK)) * scales + minima
        return found.flatten(1)

    def packed(self) -> Tensor:
        """Return the blocks as GGUF lays them out, [R, C / 32 * 20] uint8: scale, minimum, and
        bytes of which the low half is of the first 16 weights."""
        low, high = self.codes.unflatten(1, (-1, 2, BLOCK // 2)).unbind(2)
        ends = torch.stack([self.scales, self.minima], -1).view(torch.uint8)
        return torch.cat([ends, low | high << 4], 2).flatten(1)

    def rows(self, start: int, count: int) -> "Q4Matrix":
        part = slice(start, start + count)
        return Q4Matrix(self.codes[part], self.scales[part], self.minima[part])


def gptq(weights: Tensor, moments: Tensor) -> Q4Matrix:
    """Return weights [R, C] rounded so that their products with inputs change little.

    moments [C, C]: E[x x^T] of the inputs x. A block's scale and minimum are searched for when it
    is reached, on the weights as they are by then. Raises `TrainingError` for weights beyond
    float16.
    """
    left, factor = weights.float().clone(), _inverse_factor(moments)
    importance = moments.diagonal().float()
    codes = torch.zeros(left.shape, dtype=torch.uint8)
    grids = []
    for start in range(0, left.shape[1], BLOCK):
        block = slice(start, start + BLOCK)
        grid = _search(left[:, block], importance[block])
        codes[:, block], errors = _rounded(left[:, block], grid, factor[block, block])
        left[:, start + BLOCK :] -= errors @ factor[block, start + BLOCK :]
        grids.append(grid)
    scales, minima = (torch.cat(parts, 1).half() for parts in zip(*grids, strict=True))
    if not (scales.isfinite().all() and minima.isfinite().all()):
        raise TrainingError("weights are no numbers within the range of float16")
    return Q4Matrix(codes, scales, minima)


def _inverse_factor(moments: Tensor) -> Tensor:
    """Return the upper Cholesky factor [C, C] of the inverse of the damped moments."""
    damped = moments.double().clone()
    # Moments of inputs that were all 0 say nothing: any multiple of the identity will do.
    damped.diagonal().add_(_DAMPING * float(damped.diagonal().mean()) or 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


class _Grid(NamedTuple):
    """Scale and minimum of a block in each row, [R, 1]."""

    scale: Tensor
    minimum: Tensor

    def stored(self) -> "_Grid":
        """Return them as float16 holds them."""
        return _Grid(self.scale.half().float(), self.minimum.half().float())

    def codes(self, values: Tensor) -> Tensor:
        steps = torch.where(self.scale != 0, (values - self.minimum) / self.scale, 0.0)
        return steps.round().clamp(0, _LARGEST)

    def decoded(self, codes: Tensor) -> Tensor:
        return codes * self.scale + self.minimum

    def error(self, values: Tensor, importance: Tensor) -> Tensor:
        """Return the weighted square of what rounding changes, [R, 1]."""
        change = self.decoded(self.codes(values)) - values
        return (importance * change**2).sum(1, keepdim=True)


def _rounded(values: Tensor, grid: _Grid, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes of a block's weights [R, 32], input by input, and their errors in units of the
    factor's [32, 32] diagonal."""
    left, codes, errors = values.clone(), torch.zeros_like(values), torch.zeros_like(values)
    for index in range(BLOCK):
        column = left[:, index : index + 1]
        found = grid.codes(column)
        error = (column - grid.decoded(found)) / factor[index, index]
        codes[:, index], errors[:, index] = found[:, 0], error[:, 0]
        left[:, index + 1 :] -= error * factor[index, index + 1 :]
    return codes.to(torch.uint8), errors


def _search(values: Tensor, importance: Tensor) -> _Grid:
    """Return the grid of a block [R, 32] with the least weighted error of those that are tried.

    Codes by several widths of the block's range, then by the best grid so far; each time the grid
    is fitted to the codes by least squares.
    """
    importance = importance.clamp_min(_LEAST)
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    best = _Grid((high - low) / _LARGEST, low).stored()
    least = best.error(values, importance)
    for width in (*_WIDTHS, *(None,) * _REFINEMENTS):
        if width is None:
            codes = best.codes(values)
        else:
            codes = (width / (high - low).clamp_min(_LEAST) * (values - low)).round()
        grid = _fitted(values, codes.clamp(0, _LARGEST), importance, best).stored()
        error = grid.error(values, importance)
        is_better = error < least
        least = torch.where(is_better, error, least)
        best = _Grid(*(torch.where(is_better, *pair) for pair in zip(grid, best, strict=True)))
    return best


def _fitted(values: Tensor, codes: Tensor, importance: Tensor, otherwise: _Grid) -> _Grid:
    """Return the grid of least weighted error for the codes [R, 32]; `otherwise` where any scale
    fits, because the codes are all alike."""

    def mean(part: Tensor) -> Tensor:
        return (importance * part).sum(1, keepdim=True) / importance.sum()

    code, value = mean(codes), mean(values)
    spread = mean(codes * codes) - code * code
    has_spread = spread > _LEAST
    scale = (mean(codes * values) - code * value) / torch.where(has_spread, spread, 1.0)
    minimum = value - scale * code
    return _Grid(
        torch.where(has_spread, scale, otherwise.scale),
        torch.where(has_spread, minimum, otherwise.minimum),
    )
