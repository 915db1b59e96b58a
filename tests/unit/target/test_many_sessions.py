"""Sessions that share a forward: each has the bits that it would have alone."""

import random
from itertools import accumulate

import pytest
import torch

from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session
from slipstream.models.kv.batch import Part
from support.models import tiny

CASES = [("llama", torch.float32), ("llama", torch.bfloat16), ("phi3", torch.bfloat16)]
STARTS = (1, 40, 127, 128, 200, 255)
TREES = (
    TokenTree((), ()),
    TokenTree.chain([3, 4, 5]),
    TokenTree((3, 9, 4, 8, 7), (-1, -1, 0, 1, 2)),
)


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_a_row_has_the_same_bits_whatever_shares_its_forward(family, dtype):
    model = tiny.causal(family, dtype=dtype)
    pool = model.pool(40)
    parts = []
    for at, start in enumerate(STARTS):
        cache = model.open_in(pool)
        cache.reserve(start + 60)
        model.prefill(cache, tiny.tokens(start, seed=at))
        parts.append(Part(cache, tiny.tokens(1 + 7 * (at % 4), seed=50 + at), TREES[at % 3]))
    alone = [model.forward([part])[0] for part in parts]
    random.Random(1).shuffle(order := list(range(len(parts))))
    hidden, places = model.forward([parts[at] for at in order])
    ends = list(accumulate(len(slots) for slots in places))
    for at, start, end in zip(order, [0, *ends], ends, strict=False):
        assert bool((hidden[start:end] == alone[at]).all())


def verify(target, session, tokens):
    return finished(target.verify(TokenSequence(session, tokens), Proposal()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefix_of_others_changes_nothing_of_what_is_said(dtype):
    model = tiny.causal(dtype=dtype)
    shared = tiny.tokens(200, seed=1)
    prompt = [*shared, *tiny.tokens(20, seed=3)]
    said = []
    for others in (False, True):
        target = tiny.local_target(model)
        if others:
            verify(target, Session("a", 205, 20), [*shared, 1, 2, 3, 4, 5])
            finished(target.release("a"))
        tokens = list(prompt)
        session = Session("s", 220, 30, sampling=SamplingParams(temperature=0.9, seed=4))
        while (verdict := verify(target, session, tokens)).finish_reason is None:
            tokens += verdict.tokens
        said.append(tokens)
    assert said[0] == said[1]


def test_a_parked_session_whose_memory_others_needed_is_computed_anew():
    model = tiny.causal()
    target, fresh = tiny.local_target(model, num_pages=3), tiny.local_target(model)
    prompt = tiny.tokens(140)
    first = verify(target, Session("s", 140, 10), prompt)
    target.park("s")
    verify(target, Session("greedy", 300, 50), tiny.tokens(300, seed=7))
    finished(target.release("greedy"))
    session = Session("s", 145, 10)
    tokens = (*prompt, *first.tokens, 1, 2, 3, 4)
    again = verify(target, session, tokens)
    assert again.num_cached == 0
    assert again.tokens == verify(fresh, session, tokens).tokens
