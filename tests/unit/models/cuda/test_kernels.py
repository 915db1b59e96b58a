"""Kernels over pages compute the same; the fastest of those that fit is taken."""

import warnings

import pytest
import torch

from slipstream.core.errors import ModelError
from slipstream.models.cuda.attention_kernels import (
    _CANDIDATES,
    _SHAPES,
    FlexKernel,
    Trial,
    block_mask,
    choose_kernel,
    fastest,
    seen_slots,
)
from slipstream.models.kv.paged import PagedAttention, attend_paged, unpack
from slipstream.models.kv.pool import KvLayout
from slipstream.models.target.batched_tokens import Part
from slipstream.models.target.causal import CausalModel
from support.models import tiny
from support.models.scattered import LENGTHS, parts_on_scattered_pages, shaped, tree_of

LAYOUT = KvLayout(1, 2, 16, torch.float32, torch.device("cpu"))


@pytest.fixture
def flex():
    """FlexAttention as torch's own reference computes it, which warns of being slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield FlexKernel(is_compiled=False)


def test_flex_attention_sees_what_rows_of_trees_on_scattered_pages_do(flex):
    model = shaped()
    parts = parts_on_scattered_pages(
        model, [tree_of(seed, 3 + 4 * seed) for seed in range(len(LENGTHS))]
    )
    for part in parts:
        model._make_room(part)
    pool = parts[0].cache.pool
    packed = model._shaped.pack(pool, parts)
    attention = PagedAttention(2, torch.float32, pool.scratch.stop, flex)
    segments = unpack(torch.tensor(packed.values), packed.shape, attention).segments
    noise = torch.Generator().manual_seed(0)
    layer = torch.randn(4, pool.scratch.stop, 16, generator=noise)
    query = torch.randn(packed.shape.rows, 4, 16, generator=noise)
    found, expected = (kernel(query, layer, segments, 0.2) for kernel in (flex, attend_paged))
    # What is behind them is padding: in a forward it repeats the first row.
    torch.testing.assert_close(found[: packed.num_rows], expected[: packed.num_rows])


def test_shapes_beyond_those_that_torch_compiles_are_gathered():
    kernel = FlexKernel(is_compiled=False)
    shapes = [(torch.Size([rows, 4, 16]), torch.Size([4, 256, 16])) for rows in range(1, 9)]
    assert [kernel._has_room(shape) for shape in shapes] == [True] * 6 + [False] * 2
    assert kernel._has_room(shapes[0])


def test_only_pages_that_are_seen_are_read():
    seen = torch.zeros(3, 5 * 128, dtype=torch.bool)
    seen[0, 130] = seen[2, 400] = True
    mask = block_mask(seen)
    assert mask.kv_num_blocks.tolist() == [[[2]]]
    assert set(mask.kv_indices[0, 0, 0, :2].tolist()) == {1, 3}


def test_a_row_sees_its_own_past_and_itself():
    trial = Trial(LAYOUT, 2)
    seen = seen_slots(trial._batch(attend_paged, _SHAPES[0]))
    assert seen.sum(1).tolist() == [201] * 16


@pytest.mark.parametrize("name", ["sdpa", "math"])
def test_kernels_agree(name, flex):
    trial = Trial(LAYOUT, 2)
    for shape in _SHAPES:
        expected = trial._run(attend_paged, shape)
        torch.testing.assert_close(trial._run(_CANDIDATES[name], shape), expected)
        torch.testing.assert_close(trial._run(flex, shape), expected)


def test_a_kernel_whose_bits_depend_on_the_shape_is_not_steady():
    def drifting(query, layer, segments, scale):
        return attend_paged(query, layer, segments, scale) * (1 + len(segments) * 1e-6)

    def constant(query, layer, segments, scale):
        return query.flatten(1)

    trial = Trial(LAYOUT, 2)
    assert trial.steady(constant)
    assert not trial.steady(drifting)
    assert not trial.steady(lambda *_: 1 / 0)


def test_the_fastest_that_works_is_taken():
    costs = {"slow": 3.0, "fast": 1.0}

    def seconds(kernel):
        if kernel == "broken":
            raise RuntimeError("no such kernel")
        return costs[kernel]

    assert fastest({name: name for name in ("slow", "broken", "fast")}, seconds) == "fast"
    with pytest.raises(ModelError, match="broken: no such kernel"):
        fastest({"broken": "broken"}, seconds)


def test_on_a_cpu_there_is_nothing_to_choose():
    assert choose_kernel(LAYOUT, 2, is_invariant=True) is attend_paged


@pytest.mark.gpu
@pytest.mark.parametrize("numerics", ["invariant", "fast"])
def test_a_device_finds_a_kernel(numerics):
    hf = tiny.hf_model(dtype=torch.bfloat16).cuda()
    model = CausalModel(hf, numerics=numerics)
    cache = model.open_in(model.pool(2))
    hidden, _ = model.forward([Part(cache, tiny.tokens(5))])
    assert hidden.isfinite().all()
