"""Operators of torch are used where they work here, and products tiled to counts of equal bits."""

import pytest
import torch
import torch.nn.functional as F

from slipstream.models.numerics import operators
from slipstream.models.numerics.invariance import probe_rows, tiled
from slipstream.models.numerics.linears import PackedLinear
from slipstream.models.numerics.rules import RowRule
from slipstream.models.target.attention import together

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
PROBES = (operators.has_packed_linear, operators.has_int8_linear, operators.has_flash_attention)


@pytest.fixture(autouse=True)
def probed_anew():
    """No test sees what another one has found, or leaves what it has found."""
    for probe in PROBES:
        probe.cache_clear()
    yield
    for probe in PROBES:
        probe.cache_clear()


def raises(*_):
    raise RuntimeError("unsupported on this processor")


def random(*size, dtype):
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("name", ["pack_weight", "packed_linear"])
def test_a_packed_product_that_raises_is_not_used(monkeypatch, name):
    monkeypatch.setattr(operators, name, raises)
    assert not operators.has_packed_linear(torch.float32)
    weight, x = random(48, 64, dtype=torch.float32), random(5, 64, dtype=torch.float32)
    linear = PackedLinear(weight)
    assert not linear.is_packed
    assert torch.equal(linear(x), F.linear(x, weight))


def test_operators_with_other_numbers_or_that_raise_are_not_used(monkeypatch):
    monkeypatch.setattr(operators, "packed_linear", lambda x, weight, bias: x[:, :32] * 0.0)
    monkeypatch.setattr(operators, "int8_linear", raises)
    monkeypatch.setattr(operators, "flash_attention", raises)
    assert not operators.has_packed_linear(torch.float32)
    assert not operators.has_int8_linear()
    assert not any(map(operators.has_flash_attention, DTYPES))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_attention_have_the_same_numbers_by_either_operator(monkeypatch, dtype):
    weight, x, bias = (random(*size, dtype=dtype) for size in ((96, 64), (7, 64), (96,)))
    query = random(6, 2, 3, 64, dtype=dtype)
    keys, values = random(1, 2, 128, 64, dtype=dtype), random(1, 2, 128, 64, dtype=dtype).flip(2)
    mask = torch.zeros(1, 1, 18, 128, dtype=dtype)
    mask[..., 100:] = -torch.inf
    found = []
    for _ in range(2):
        found.append((PackedLinear(weight, bias)(x), *together(query, keys, values, mask, 0.125)))
        for probe in PROBES:
            probe.cache_clear()
        monkeypatch.setattr(operators, "pack_weight", raises)
        monkeypatch.setattr(operators, "flash_attention", raises)
    for fallback, here in zip(found[1], found[0], strict=True):
        assert fallback.shape == here.shape
        difference = (fallback.float() - here.float()).norm()
        assert difference <= TOLERANCE[dtype] * here.float().norm()


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

        def product(x, asked=asked):
            asked.append(len(x))
            return x * 2

        for count in range(1, 70):
            x = EXAMPLE[:count]
            assert torch.equal(tiled(product, x, rule), x * 2)
        assert rule.min_rows <= min(asked)
        assert max(asked) <= rule.max_rows
