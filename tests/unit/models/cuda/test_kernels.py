"""A kernel over pages is torch's own, or one that gives a token the same bits in any batch."""

import pytest

from slipstream.core.errors import ModelError
from slipstream.models.cuda import attention_kernels
from slipstream.models.cuda.attention_kernels import Trial, choose_kernel
from slipstream.models.dtypes import CPU, FLOAT32
from slipstream.models.kv.paged import attend_paged
from slipstream.models.kv.pool import KvLayout

LAYOUT = KvLayout(1, 2, 16, FLOAT32, CPU)


def constant(query, layer, segments, scale):
    return query.flatten(1)


def drifting(query, layer, segments, scale):
    return query.flatten(1) * (1 + len(segments) * 1e-6)


def broken(query, layer, segments, scale):
    raise RuntimeError("no such kernel")


def test_a_kernel_whose_bits_depend_on_the_shape_is_not_steady():
    trial = Trial(LAYOUT, 2)
    assert trial.is_steady(constant)
    assert not trial.is_steady(drifting)
    assert not trial.is_steady(broken)


@pytest.mark.gpu
def test_the_first_steady_kernel_computes_for_invariant_numerics(monkeypatch):
    layout = KvLayout(1, 2, 16, FLOAT32, "cuda")
    monkeypatch.setattr(attention_kernels, "_STEADY", (broken, drifting, constant, constant))
    assert choose_kernel(layout, 2, is_invariant=True) is constant
    assert choose_kernel(layout, 2, is_invariant=False) is attend_paged
    monkeypatch.setattr(attention_kernels, "_STEADY", (broken, drifting))
    with pytest.raises(ModelError, match="no attention kernel of cuda gives a row the same bits"):
        choose_kernel(layout, 2, is_invariant=True)
