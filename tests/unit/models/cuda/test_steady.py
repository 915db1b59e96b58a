"""Products and norms of a device give a row the same bits in any company: tiled to counts of equal
bits, which are measured."""

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from slipstream.models.cuda.layers import scale_linears
from slipstream.models.cuda.steady import make_steady, probe_rows, probed_rule, tiled
from slipstream.models.decoder import RowRule
from slipstream.models.glide.glide import RmsNorm
from slipstream.models.torch.arrays import rounded

EXAMPLE = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))


def product_with_other_bits(*counts):
    """x * 2, but a little more when the number of rows is one of `counts`."""

    def product(x):
        return x * (2.0 + (1e-6 if len(x) in counts else 0.0))

    return product


RULES = [
    ((), RowRule(1, 128)),  # every count that is probed
    ((1,), RowRule(2, 128)),
    ((48, 64, 96, 128), RowRule(1, 33)),  # a change of kernel
    ((1, 3, 5), RowRule(16, 16)),  # padded to one count
]


@pytest.mark.parametrize(("counts", "rule"), RULES)
def test_counts_whose_bits_differ_are_left_out(counts, rule):
    assert probe_rows(product_with_other_bits(*counts), EXAMPLE) == rule


def test_tiling_only_ever_asks_for_counts_within_the_rule():
    for rule in (RowRule(1, 32), RowRule(2, 32), RowRule(16, 16)):
        asked = []

        def product(x, scales, asked=asked):
            asked.append(len(x))
            return x * scales

        for count in range(1, 70):
            rows = (EXAMPLE[:count], EXAMPLE[:count, :1])
            assert torch.equal(tiled(product, rows, rule), rows[0] * rows[1])
        assert rule.min_rows <= min(asked)
        assert max(asked) <= rule.max_rows


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "is_scaled"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)],
)
def test_products_and_norms_of_a_model_give_a_row_the_same_bits_in_any_company(dtype, is_scaled):
    body = nn.Sequential(LlamaRMSNorm(64), nn.Linear(64, 96), nn.Linear(96, 64, bias=False))
    body = body.to("cuda", dtype).requires_grad_(False)
    if is_scaled:
        scale_linears(body, "cuda")
    x = torch.randn(128, 64).to("cuda", dtype)
    expected = body(x)
    make_steady(body, rule := probed_rule(body))
    assert isinstance(body[0], RmsNorm)
    assert rule.max_rows >= rule.min_rows
    whole = body(x)
    torch.testing.assert_close(whole, expected, rtol=0.02, atol=0.02)
    for count in (1, 2, 4, 8, 16, 64):
        assert torch.equal(torch.cat([body(part) for part in x.split(count)]), whole)


def test_products_in_8_bits_are_those_of_the_dequantised_numbers_and_near_the_exact_ones():
    torch.manual_seed(0)
    body, x = nn.Sequential(nn.Linear(64, 96)).bfloat16(), torch.randn(33, 64).bfloat16()
    exact = body(x).double()
    scale_linears(body, "cpu")
    (linear,), (codes, own) = body, rounded(x)
    weight = linear.weight.double() * linear.scales.double()
    expected = (codes.double() * own.double()) @ weight.T + linear.bias.double()
    assert torch.equal(linear(codes, own), body(x))
    torch.testing.assert_close(body(x).double(), expected, rtol=2**-8, atol=1e-6)
    assert 0.001 < (expected - exact).norm() / exact.norm() < 0.05
