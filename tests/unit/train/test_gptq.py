"""Rounding by GPTQ loses no more than rounding each weight alone, and is what the blocks hold."""

import numpy as np
import pytest
import torch

from slipstream.core.errors import TrainingError
from slipstream.models.dtypes import FLOAT32
from slipstream.models.native import library, weights
from slipstream.train.gptq import gptq

CASES = {
    "correlated": lambda noise: noise(400, 96) @ noise(96, 96),
    "independent": lambda noise: noise(400, 96),
    "fewer inputs than columns": lambda noise: noise(20, 96),
    "one large column": lambda noise: noise(400, 96) * (1 + 50 * (torch.arange(96) == 40)),
    "columns that are always 0": lambda noise: noise(400, 96) * (torch.arange(96) < 40),
    "all the same": lambda noise: torch.ones(400, 96),
}


def case(name, seed):
    """Weights [37, 96] and moments of inputs."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*size):
        return torch.randn(*size, generator=generator)

    inputs = CASES[name](noise).double()
    return noise(37, 96) * 0.1, inputs.T @ inputs / len(inputs)


def plain(matrix):
    """Each weight rounded alone, by the least and the largest of its block."""
    blocks = matrix.unflatten(1, (-1, 32))
    low, high = blocks.amin(2, keepdim=True), blocks.amax(2, keepdim=True)
    scale, low = ((high - low) / 15).half().float(), low.half().float()
    return (((blocks - low) / scale).round().clamp(0, 15) * scale + low).flatten(1)


def loss(rounded, matrix, moments):
    """The mean square of what products change by."""
    change = (rounded - matrix).double()
    return float(((change @ moments) * change).sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", CASES)
def test_products_change_no_more_than_by_plain_rounding(name, seed):
    matrix, moments = case(name, seed)
    found = gptq(matrix, moments)
    assert loss(found.weights(), matrix, moments) <= loss(plain(matrix), matrix, moments)


def test_without_any_input_weights_are_rounded_all_the_same():
    matrix, moments = case("independent", 0)
    change = gptq(matrix, torch.zeros_like(moments)).weights() - matrix
    assert change.norm() <= (plain(matrix) - matrix).norm()


def test_weights_that_blocks_can_hold_are_kept():
    matrix, moments = case("correlated", 0)
    kept = plain(matrix)
    assert loss(gptq(kept, moments).weights(), kept, moments) < 1e-3 * loss(kept, matrix, moments)
    assert torch.equal(
        gptq(torch.full((2, 64), 0.25), torch.eye(64)).weights().unique(), torch.tensor([0.25])
    )


def test_rows_do_not_depend_on_each_other():
    matrix, moments = case("correlated", 1)
    whole, part = gptq(matrix, moments).rows(5, 9), gptq(matrix[5:14], moments)
    assert torch.equal(whole.packed(), part.packed())


@pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")
def test_blocks_are_read_as_the_weights_that_were_meant():
    matrix, moments = case("correlated", 2)
    found = gptq(matrix, moments)
    packed = found.packed().numpy()
    assert packed.shape == (37, 96 // 32 * 20) and packed.dtype == np.uint8
    read = weights.Weights(weights.Q4_1, packed).dense(FLOAT32)
    np.testing.assert_allclose(read, found.weights().numpy(), rtol=1e-6, atol=1e-7)


def test_weights_beyond_float16_are_refused():
    with pytest.raises(TrainingError, match="range of float16"):
        gptq(torch.full((1, 32), 1e6), torch.eye(32))
