"""The target model computes the same bits for a token wherever it is."""

import random

import numpy as np
import pytest
import torch

from slipstream.core.errors import ModelError
from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.target.token_layout import Part
from support.models import tiny

CASES = [("llama", torch.bfloat16), ("qwen2", torch.bfloat16), ("qwen3", torch.float32)]
STARTS = [1, 121, 126, 127, 128, 129, 250]
LENGTH = 9


def one_by_one(model, tokens, start):
    cache = model.open(len(tokens))
    model.prefill(cache, tokens[:start])
    states = []
    for token in tokens[start:]:
        hidden, (slots,) = model.forward([Part(cache, [token])])
        cache.keep(slots)
        states.append(hidden[0])
    return states


def bushy(path, seed):
    """A tree that holds `path`, with wrong siblings before and after, and where it is in it."""
    rng = random.Random(seed)
    tokens, parents, nodes, parent = [], [], [], ROOT
    for token in path:
        wrong = [rng.randrange(1, tiny.VOCAB) for _ in range(rng.randrange(4))]
        wrong = [other for other in dict.fromkeys(wrong) if other != token]
        place = rng.randrange(len(wrong) + 1)
        level = [*wrong[:place], token, *wrong[place:]]
        nodes.append(len(tokens) + place)
        tokens += level
        parents += [parent] * len(level)
        parent = nodes[-1]
    return TokenTree(tuple(tokens), tuple(parents)), nodes


@pytest.mark.parametrize(("family", "dtype"), CASES)
@pytest.mark.parametrize("start", STARTS)
def test_a_tree_and_what_follows_its_accepted_path_have_the_bits_of_plain_decoding(
    family, dtype, start
):
    model = tiny.causal(family, dtype=dtype)
    tokens = tiny.tokens(start + LENGTH, seed=start)
    plain = one_by_one(model, tokens, start)
    tree, nodes = bushy(tokens[start + 1 :], seed=start)
    cache = model.open(len(tokens))
    model.prefill(cache, tokens[:start])
    hidden, (slots,) = model.forward([Part(cache, tokens[start : start + 1], tree)])
    for state, row in zip(plain, [0, *(1 + node for node in nodes)], strict=True):
        assert np.array_equal(hidden[row], state)
    cache.keep([slots[0], *(slots[1 + node] for node in nodes[:4])])
    hidden, _ = model.forward([Part(cache, tokens[start + 5 :])])
    assert np.array_equal(hidden, np.stack(plain[5:]))


def test_fast_numerics_agree_up_to_rounding():
    tokens = tiny.tokens(200)
    states = []
    for numerics in ("invariant", "fast"):
        model = tiny.causal(numerics=numerics)
        states.append(model.forward([Part(model.open(200), tokens)])[0])
    np.testing.assert_allclose(*states, rtol=1e-4, atol=1e-4)


def test_a_position_past_the_context_is_refused():
    model = tiny.causal()
    cache = model.open(512)
    model.prefill(cache, tiny.tokens(510))
    with pytest.raises(ModelError, match="context of 512"):
        model.forward([Part(cache, tiny.tokens(1), TokenTree.chain(tiny.tokens(2)))])
