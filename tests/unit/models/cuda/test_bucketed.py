"""Forwards of fixed shapes over pages compute what forwards without shapes do; shapes are few."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import CapacityError, ModelError
from slipstream.core.tree import EMPTY, TokenTree
from slipstream.models.cuda import attention_kernels
from slipstream.models.cuda.attention_kernels import Trial, choose_kernel
from slipstream.models.cuda.buckets import Buckets, buckets_for, fit, key_widths, row_steps
from slipstream.models.decoder import RowRule
from slipstream.models.dtypes import CPU, FLOAT32
from slipstream.models.kv.batch import Draw, Part
from slipstream.models.kv.pool import KvLayout
from slipstream.models.loading import causal_model
from slipstream.models.memory import temporary_bytes
from slipstream.models.torch.arrays import as_array
from slipstream.models.torch.packing import ForwardShape
from support.models import tiny

pytestmark = pytest.mark.gpu
NODES = (EMPTY, TokenTree.chain([7, 3, 9]), TokenTree((3, 4, 5), (-1, -1, 1)))
COVERING = [
    *((1, 3, NODES[0], None), (1, 140, NODES[1], 0.0), (1, 3, NODES[2], 0.9)),
    *((2, 3, NODES[1], 0.9), (2, 140, NODES[2], 0.0), (2, 140, NODES[0], 0.9)),
    *((2, 3, NODES[2], None), (1, 140, NODES[2], 0.9)),
]
"""Numbers of sessions, lengths, trees and temperatures that need each step of a bucket."""


LENGTHS = (130, 5, 260, 127, 1)


def tree_of(seed, size):
    """Paths that leave the first one at every depth."""
    rng = random.Random(seed)
    tokens, parents, taken = [], [], set()
    for node in range(size):
        parent, token = rng.randrange(-1, node), rng.randrange(1, tiny.VOCAB)
        if (parent, token) in taken:
            parent = node - 1
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
    return TokenTree(tuple(tokens), tuple(parents))


def shaped(family="llama"):
    return causal_model(tiny.hf_model(family).to("cuda"), engine="cuda")


def parts_on_scattered_pages(model, trees, pending=2):
    """Sessions whose pages lie between each other's."""
    pool = model.pool(16)
    caches = [model.open_in(pool) for _ in LENGTHS]
    texts = [tiny.tokens(length + pending, seed=length) for length in LENGTHS]
    for end in (100, 200, 300):
        for cache, text in zip(caches, texts, strict=True):
            stop = min(len(text) - pending, end)
            if stop > cache.count:
                model.prefill(cache, text[cache.count : stop])
    ends = [text[-pending:] for text in texts]
    return [Part(*given) for given in zip(caches, ends, trees, strict=True)]


def chain_of(seed, size):
    return TokenTree.chain(tiny.tokens(size, seed=seed))


def leaves_of(seed, size):
    chain = tiny.tokens(size, seed=seed)
    parents = [*range(-1, size - 1), *range(-1, size - 1)]
    return TokenTree((*chain, *(token % (tiny.VOCAB - 1) + 1 for token in chain)), tuple(parents))


@pytest.mark.parametrize(
    ("family", "make"), [("llama", chain_of), ("qwen3", leaves_of), ("phi3", tree_of)]
)
def test_many_sessions_on_scattered_pages_have_the_same_states(family, make):
    trees = [make(seed, 3 + 4 * seed) for seed in range(len(LENGTHS))]
    plain, model = tiny.causal(family), shaped(family)
    expected, places = plain.forward(parts_on_scattered_pages(plain, trees))
    parts = parts_on_scattered_pages(model, trees)
    assert any(part.cache.base(part.end) is None for part in parts)
    hidden, own_places = model.forward(parts)
    assert own_places == places
    np.testing.assert_allclose(hidden.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_what_follows_an_accepted_path_has_the_same_states():
    tree = tree_of(3, 9)
    states = []
    for model in (tiny.causal(), shaped()):
        parts = parts_on_scattered_pages(model, [tree] * len(LENGTHS))
        _, places = model.forward(parts)
        after = []
        for part, slots in zip(parts, places, strict=True):
            path = tree.path(len(tree) - 1)
            part.cache.keep([*slots[:2], *(slots[2 + node] for node in path)])
            after.append(Part(part.cache, [7]))
        states.append(as_array(model.forward(after)[0]))
    np.testing.assert_allclose(*states, rtol=1e-4, atol=1e-5)


def test_shapes_are_few():
    model = shaped()
    cache = model.open_in(model.pool(4))
    for size in range(1, 60, 6):
        _, (slots,) = model.forward([Part(cache, tiny.tokens(1 + size % 7), chain_of(size, 5))])
        cache.keep(slots[:1])
    assert len(model.decoder.replay) <= 4


def test_what_fits_no_shape_or_would_gather_too_much_is_computed_without_capture():
    plain, text = tiny.causal(), tiny.tokens(9)
    draws, states = [Draw(8, 0.0, (0, 0))], []
    for model, change in ((shaped(), None), (shaped(), "small"), (shaped(), "few"), (plain, None)):
        decoder = model.decoder
        if change == "small":
            decoder.max_bytes = 0
        elif change == "few":
            decoder.buckets = buckets_for(4, 512, RowRule(1, 32))
        part = Part(model.open_in(model.pool(1)), text)
        states.append(as_array(model.forward([part])[0]))
        if model is not plain:
            tokens = model.draw([part], draws).tokens
            assert tokens == [int(plain.logits(states[-1][-1:]).argmax())]
            assert bool(len(decoder.replay)) is (change is None)
    for own in states[:3]:
        np.testing.assert_allclose(own, states[3], rtol=1e-4, atol=1e-5)


def test_memory_of_captures_is_accounted():
    shaped_model, plain = shaped(), tiny.causal()
    cache = shaped_model.open_in(shaped_model.pool(2))
    shaped_model.forward([Part(cache, tiny.tokens(9))])
    entries = shaped_model.decoder.replay._entries.values()
    used = sum(out.nbytes for entry in entries for out in entry.outputs)
    accounted = shaped_model.workspace_bytes(16) - plain.workspace_bytes(16)
    assert accounted > temporary_bytes(torch.device("cuda")) + used


def test_every_bucket_can_be_captured():
    model, plain = shaped(), tiny.causal()
    model.decoder.buckets = Buckets((2, 16), (1, 8), (1, 4), (128, 256), (0, 16))
    keys = set()
    for num_sessions, length, tree, heat in COVERING:
        drawn, states = draw_all(model, num_sessions, length, tree, heat)
        keys |= set(model.decoder.replay._entries)
        _, expected = draw_all(plain, num_sessions, length, tree, None)
        np.testing.assert_allclose(states, expected, rtol=1e-4, atol=1e-5)
        assert drawn is None or len(drawn) == num_sessions
    shapes = [shape for _, shape, _ in keys]
    for name in ("rows", "segments", "segment_size", "width", "path"):
        steps = {getattr(shape, name) for shape in shapes}
        assert len(steps) == 2, f"one step of {name} was never captured"
    assert {is_greedy for _, _, is_greedy in keys} == {True, False}


def draw_all(model, num_sessions, length, tree, heat):
    """The tokens drawn behind each session's last one, and all states."""
    pool = model.pool(3 * num_sessions)
    parts = []
    for at in range(num_sessions):
        cache = model.open_in(pool)
        text = tiny.tokens(length, seed=at)
        model.prefill(cache, text[:-1])
        parts.append(Part(cache, text[-1:], tree))
    if heat is None:
        return None, as_array(model.forward(parts)[0])
    size = 1 + len(tree)
    draws = [Draw(at * size, heat, (at, 7) if heat else (0, 0)) for at in range(num_sessions)]
    drawn = model.draw(parts, draws)
    return drawn.tokens, drawn.hidden.cpu()


def test_captured_forwards_in_bfloat16_compute_what_the_host_does():
    trees = [tree_of(seed, 9) for seed in range(len(LENGTHS))]
    plain = causal_model(tiny.hf_model(dtype=torch.bfloat16))
    model = causal_model(tiny.hf_model(dtype=torch.bfloat16).cuda())
    expected = torch.tensor(plain.forward(parts_on_scattered_pages(plain, trees))[0])
    parts = parts_on_scattered_pages(model, trees)
    for _ in range(2):
        hidden, _ = model.forward(parts)
        error = (hidden.cpu().float() - expected.float()).norm() / expected.float().norm()
        assert error < 0.05


@given(st.integers(1, 200_000))
def test_key_widths_are_few_multiples_of_a_block_and_waste_less_than_half(limit):
    widths = key_widths(limit)
    assert all(width % 128 == 0 for width in widths)
    assert widths[-1] - 128 < limit <= widths[-1]
    assert list(widths) == sorted(set(widths))
    assert all(b <= max(1.5 * a + 128, a + 128) for a, b in pairwise(widths))
    assert len(widths) <= 24


@given(st.integers(1, 2048), st.sampled_from([(1, 1 << 30), (2, 32), (16, 16), (5, 24), (4, 128)]))
def test_row_counts_obey_the_rule_of_equal_bits(limit, rule):
    low, high = rule
    steps = row_steps(limit, min_rows=low, max_rows=high)
    assert steps[-1] >= limit
    assert list(steps) == sorted(set(steps))
    assert all(low <= step and (step <= high or step % high == 0) for step in steps)


def test_a_shape_is_the_next_step_and_more_than_the_largest_is_refused():
    buckets = Buckets((1, 4, 16), (1, 2), (1, 8), (128, 256))
    wanted = ForwardShape(rows=5, segments=2, segment_size=4, width=129, path=3, draws=0)
    assert buckets.shape(wanted) == ForwardShape(16, 2, 8, 256, 16, 0)
    with pytest.raises(CapacityError, match="17 rows are needed, but the largest shape has 16"):
        fit(17, (1, 16), what="rows")


def constant(query, layer, segments, scale):
    return query.flatten(1)


def drifting(query, layer, segments, scale):
    return query.flatten(1) * (1 + len(segments) * 1e-6)


def broken(query, layer, segments, scale):
    raise RuntimeError("no such kernel")


def test_the_first_kernel_whose_bits_depend_on_no_shape_computes_for_invariant_numerics(
    monkeypatch,
):
    trial = Trial(KvLayout(1, 2, 16, FLOAT32, CPU), 2)
    assert list(map(trial.is_steady, (constant, drifting, broken))) == [True, False, False]
    layout = KvLayout(1, 2, 16, FLOAT32, "cuda")
    monkeypatch.setattr(attention_kernels, "_STEADY", (broken, drifting, constant, constant))
    assert choose_kernel(layout, 2) is constant
    monkeypatch.setattr(attention_kernels, "_STEADY", (broken, drifting))
    with pytest.raises(ModelError, match="no attention kernel of cuda gives a row the same bits"):
        choose_kernel(layout, 2)
