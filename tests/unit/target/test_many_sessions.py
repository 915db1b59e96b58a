"""Sessions that share a forward: each has the bits that it would have alone."""

import random
from itertools import accumulate

import pytest
import torch

from slipstream.core.errors import NoRoom
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, SamplingParams, Session
from slipstream.models.target.token_layout import Part
from slipstream.verifying.engine import MAX_CHUNK
from slipstream.verifying.request import TargetRequest
from slipstream.verifying.schedule import ScheduledRequest
from support.models import tiny

CASES = [("llama", torch.float32), ("llama", torch.bfloat16), ("phi3", torch.bfloat16)]
STARTS = (1, 40, 127, 128, 200, 255)
TREES = (
    TokenTree((), ()),
    TokenTree.chain([3, 4, 5]),
    TokenTree((3, 9, 4, 8, 7), (-1, -1, 0, 1, 2)),
)


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_a_row_has_the_same_bits_whoever_shares_its_forward(family, dtype):
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


def begun(target, sequence, proposal=None):
    request = TargetRequest(sequence, proposal or Proposal())
    target.begin(request)
    return request


def part_of(request, most):
    return ScheduledRequest(request, min(request.num_pending, most))


class Round:
    """One session's requests against an engine, as the loop would make them."""

    def __init__(self, name, *, num_prompt, temperature, max_tokens=24, seed=0):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        self.session = Session(name, num_prompt, max_tokens, sampling=sampling)
        self.sequence = TokenSequence(self.session, tiny.tokens(num_prompt, seed=seed))
        self.is_done = False
        self._rng = random.Random(seed)

    def begin(self, target):
        guess = [self._rng.randrange(1, tiny.VOCAB) for _ in range(self._rng.randrange(4))]
        num_output = len(self.sequence) - self.session.num_prompt_tokens
        room = self.session.max_tokens - num_output - 1
        tree = TokenTree.chain(guess[:room]) if num_output else TokenTree((), ())
        return begun(target, self.sequence, Proposal(tree))

    def take(self, verdict):
        self.sequence.append(verdict.tokens)
        self.is_done = verdict.finish_reason is not None


def rounds():
    lengths = enumerate((3, 130, 60, 300, 128, 17))
    return [Round(f"s{at}", num_prompt=num, temperature=at % 2, seed=at) for at, num in lengths]


def by_turns(target, sessions):
    for one in sessions:
        while not one.is_done:
            work = one.begin(target)
            while not work.is_done:
                target.step([part_of(work, MAX_CHUNK)])
            one.take(work.result())


def mixed(target, sessions, rng):
    """Steps with whoever happens to be there, each with a part of what it needs."""
    works = {}
    while not all(one.is_done for one in sessions):
        idle = [one for one in sessions if not one.is_done and one not in works]
        works |= {one: one.begin(target) for one in idle if rng.random() < 0.8}
        if works:
            target.step([part_of(work, rng.randrange(1, 50)) for work in works.values()])
        for one in [one for one, work in works.items() if work.is_done]:
            one.take(works.pop(one).result())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sessions_say_the_same_together_and_alone(dtype):
    model = tiny.causal(dtype=dtype)
    alone, together = rounds(), rounds()
    by_turns(tiny.local_target(model), alone)
    mixed(tiny.local_target(model), together, random.Random(9))
    assert [one.sequence.tokens for one in together] == [one.sequence.tokens for one in alone]
    assert all(len(one.sequence) > one.session.num_prompt_tokens + 5 for one in together)


def verify(target, session, tokens):
    return finished(target.verify(TokenSequence(session, tokens), Proposal()))


def test_who_begins_like_another_finds_that_part_computed():
    target = tiny.local_target(tiny.causal())
    shared = tiny.tokens(150, seed=1)
    one, two = [*shared, *tiny.tokens(20, seed=2)], [*shared, *tiny.tokens(20, seed=3)]
    assert verify(target, Session("a", 170, 20), one).num_cached == 0
    # Whole pages are shared as soon as they are there,
    assert verify(target, Session("b", 170, 20), two).num_cached == 128
    finished(target.release("a"))
    # and the rest once its owner is gone, by a copy.
    assert verify(target, Session("c", 170, 20), two).num_cached == 150
    assert verify(target, Session("d", 170, 20), one).num_cached == 169


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


def test_a_session_without_room_waits_and_leaves_the_others_alone():
    target = tiny.local_target(tiny.causal(), num_pages=3)
    verify(target, Session("a", 100, 100), tiny.tokens(100))
    b = Session("b", 100, 100)
    with pytest.raises(NoRoom, match="256 slots of keys and values are needed"):
        begun(target, TokenSequence(b, tiny.tokens(100, seed=1)))
    assert target.kv_bytes("b") == 0
    assert verify(target, Session("a", 100, 100), tiny.tokens(100)).num_cached == 99
    finished(target.release("a"))
    assert verify(target, b, tiny.tokens(100, seed=1)).tokens
