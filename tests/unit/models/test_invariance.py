"""The probe finds which row counts share their bits, and tiling keeps to them."""

import pytest
import torch

from slipstream.models.numerics.invariance import probe_rows, tiled
from slipstream.models.numerics.rules import RowRule

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
