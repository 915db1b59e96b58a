"""Forwards of fixed shapes over pages compute what forwards without shapes do; shapes are few."""

import itertools
import random
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import ModelError
from slipstream.core.tree import EMPTY, TokenTree
from slipstream.core.types import SamplingParams
from slipstream.models.cuda.layers import scale_linears
from slipstream.models.decoder import RowRule
from slipstream.models.kv.batch import Draw, Part
from slipstream.models.torch.arrays import as_array
from slipstream.models.torch.packing import Buckets, row_steps
from support.models import tiny
from support.models.in_memory import causal_model

pytestmark = pytest.mark.gpu
NODES = (EMPTY, TokenTree.chain([7, 3, 9]), TokenTree((3, 4, 5), (-1, -1, 1)))
SAMPLED = SamplingParams(temperature=0.9)
TRUNCATED = SamplingParams(temperature=0.9, top_p=0.9)
LENGTHS = (130, 5, 260, 127, 1)


def tree_of(size, seed):
    return tiny.tree(random.Random(seed), size)


def shaped(family="llama", dtype=torch.float32):
    return causal_model(tiny.hf_model(family, dtype=dtype).to("cuda"), hidden_layers=(1, 3))


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


def chain_of(size, seed):
    return TokenTree.chain(tiny.tokens(size, seed=seed))


def leaves_of(size, seed):
    chain = tiny.tokens(size, seed=seed)
    parents = [*range(-1, size - 1), *range(-1, size - 1)]
    return TokenTree((*chain, *(token % (tiny.VOCAB - 1) + 1 for token in chain)), tuple(parents))


@pytest.mark.parametrize(
    ("family", "make", "dtype", "limit"),
    [
        ("llama", chain_of, torch.float32, 1e-5),
        ("qwen3", leaves_of, torch.float32, 1e-5),
        ("phi3", tree_of, torch.float32, 1e-5),
        ("llama", tree_of, torch.bfloat16, 0.05),
    ],
)
def test_many_sessions_on_scattered_pages_have_the_same_states(family, make, dtype, limit):
    trees = [make(3 + 4 * seed, seed) for seed in range(len(LENGTHS))]
    plain, model = tiny.causal(family, dtype=dtype), shaped(family, dtype)
    states, places = plain.forward(parts_on_scattered_pages(plain, trees))
    parts, expected = parts_on_scattered_pages(model, trees), torch.as_tensor(states)
    assert any(part.cache.base(part.end) is None for part in parts)
    for _ in range(2):
        hidden, own_places = model.forward(parts)
        assert own_places == places
        assert (hidden.cpu().float() - expected).norm() < limit * expected.norm()


@pytest.mark.parametrize(
    ("family", "layers", "engine"),
    [
        ("llama", (0, 1, 3), "cuda"),
        ("qwen3", (3, 2), "cuda"),
        ("phi3", (1, 3), "cuda"),
        ("qwen2", (2, 3), "torch"),
        ("gpt-neox", (0, 2), "torch"),
    ],
)
def test_kept_states_are_what_layers_take_in_and_the_last_ones_are_normed(family, layers, engine):
    hf, device = tiny.hf_model(family), engine.replace("torch", "cpu")
    model = causal_model(deepcopy(hf).to(device), engine=engine, hidden_layers=layers)
    parts = parts_on_scattered_pages(model, [tree_of(9, seed) for seed in range(len(LENGTHS))])
    hidden, (_, places, *_) = model.forward(parts)
    parts[1].cache.keep(places[:2])
    inputs = hf(torch.tensor([tiny.tokens(7, seed=5)]), output_hidden_states=True).hidden_states
    for layer in layers:
        halves = parts[1].cache.view([3 + layer]).layers[3 + layer]
        slots = parts[1].cache.table()[:7]
        found = halves[:, slots if device == "cuda" else slice(7)].transpose(0, 1).flatten(1)
        if layer == 3:
            found = model.decoder._body.norm(found[None])[0]
            assert torch.equal(found[5:], hidden[11:13])
        torch.testing.assert_close(found.cpu(), inputs[layer][0], rtol=1e-4, atol=1e-5)


def test_states_that_a_family_has_in_no_known_place_are_refused():
    with pytest.raises(ModelError, match="no layer 3 whose"):
        causal_model(tiny.hf_model("gpt-neox"), engine="torch", hidden_layers=(3,))


FACTORS = {"short_factor": [1.0, 1.5] * 4, "long_factor": [9.0] * 8}
LONG = {"rope_type": "longrope", **FACTORS, "original_max_position_embeddings": 300}


@pytest.mark.parametrize(
    ("family", "rope"), [("llama", {"rope_type": "dynamic", "factor": 2.0}), ("phi3", LONG)]
)
def test_rotary_embeddings_for_texts_of_any_length_are_captured(family, rope):
    rope = {"rope_parameters": {**rope, "rope_theta": 1e4}}
    hf, tokens = tiny.hf_model(family, **rope), tiny.tokens(40)
    expected = hf.base_model(torch.tensor([tokens])).last_hidden_state[0]
    model = causal_model(hf.to("cuda"))
    hidden, _ = model.forward([Part(model.open_in(model.pool(1)), tokens)])
    assert len(model.decoder.replay._entries) == 1
    torch.testing.assert_close(hidden.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_what_follows_an_accepted_path_has_the_same_states():
    tree = tree_of(9, 3)
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


def few_rows(model):
    model.decoder.buckets = Buckets((1, 4, 16), 4, model.decoder.buckets.tile)
    model.decoder._tables.num_rows = 4
    return model


def test_all_that_comes_later_is_captured_before_and_leaves_nothing_behind():
    model, plain = few_rows(shaped()), tiny.causal()
    pool = model.pool(8)
    model.decoder.prepare(pool)
    captured = set(model.decoder.replay._entries)
    assert len(captured) == 5 + 3 + 2  # rows by sessions, draws, and those of fewer rows
    for tree, num, sampling in itertools.product(NODES, (1, 3), (SAMPLED, TRUNCATED)):
        parts = [Part(model.open_in(pool), tiny.tokens(2, seed=at), tree) for at in range(num)]
        draws = [Draw(index, sampling, (index, 7)) for index in range(num * (2 + len(tree)))]
        hidden = model.draw(parts, draws)[0].cpu()
        others = [Part(plain.open(9), part.pending, tree) for part in parts]
        expected = np.concatenate([plain.forward([part])[0] for part in others])
        np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-5)
        for part in parts:
            part.cache.close()
    assert set(model.decoder.replay._entries) == captured


@pytest.mark.parametrize(
    ("family", "most", "is_scaled"),
    [("llama", 10, False), ("qwen3", 10, False), ("phi3", 26, False), ("qwen2", 10, True)],
)
def test_a_layer_is_few_kernels_and_a_draw_fewer(family, most, is_scaled):
    nums = []
    for num_layers, kept in ((2, ()), (3, ()), (3, (0, 3))):
        hf = tiny.hf_model(family, num_hidden_layers=num_layers, dtype=torch.bfloat16).cuda()
        if is_scaled:
            scale_linears(hf, "cuda", head=hf.lm_head)
        model = causal_model(hf, hidden_layers=kept)
        cache = model.open_in(model.pool(1))
        for sampling in (SAMPLED, TRUNCATED):
            model.draw([Part(cache, [1, 2])], [Draw(1, sampling, (1, 2))])
        entries = model.decoder.replay._entries.values()
        nums.append([entry.replay.__self__.num_kernels for entry in entries])
    (fewer, *_), (more, drawn, truncated), (keeping, *_) = nums
    assert keeping - more == 2
    assert more - fewer <= most
    assert fewer <= 2 * most + 14  # positions, and the last norm
    assert drawn == 1 + 3  # the head
    assert truncated == drawn + 3 + 1 + 3  # edits, heats, and what is left out


def test_more_tokens_than_any_shape_has_are_computed_without_capture():
    plain, text, model = tiny.causal(), tiny.tokens(20), few_rows(shaped())
    part, other = Part(model.open_in(model.pool(1)), text), Part(plain.open(20), text)
    hidden, _, tokens = model.draw([part], [Draw(at, SamplingParams(), (0, 0)) for at in range(20)])
    expected = plain.forward([other])[0]
    np.testing.assert_allclose(hidden.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert tokens == plain.logits(expected).argmax(-1).tolist()
    assert [*model.decoder.replay._entries] == [(16, True), (4, True)]  # draws alone


def test_more_edits_than_there_is_room_for_are_applied_in_parts():
    model = few_rows(shaped())
    part = Part(model.open_in(model.pool(1)), tiny.tokens(4))
    banned = np.zeros((tiny.VOCAB, 4), np.int32)
    banned[:, 0] = range(tiny.VOCAB)
    banned.view(np.float32)[:, 2:] = 1, -np.inf
    sampling, left = SamplingParams(), (7, 2, 9, 5)
    draws = [Draw(at, sampling, (0, 0), (np.delete(banned, left[at], 0),)) for at in range(4)]
    assert sum(len(draw.edits[0]) for draw in draws) > len(model.decoder._tables.edits)
    assert tuple(model.draw([part], draws)[2]) == left


def test_memory_of_captures_is_accounted():
    model = few_rows(shaped())
    model.decoder.prepare(model.pool(2))
    entries = model.decoder.replay._entries.values()
    used = sum(out.nbytes for entry in entries for out in entry.outputs)
    assert model.workspace_bytes(0) > used


@given(st.integers(1, 2048), st.sampled_from([(1, 1 << 30), (2, 32), (16, 16), (5, 24), (4, 128)]))
def test_row_counts_obey_the_rule_of_equal_bits(limit, rule):
    low, high = rule
    steps = row_steps(limit, RowRule(low, high))
    assert steps[-1] >= limit
    assert list(steps) == sorted(set(steps))
    assert all(min(low, limit) <= step and (step <= high or step % high == 0) for step in steps)
