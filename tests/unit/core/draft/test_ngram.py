"""The n-gram draft repeats what followed, and keeps the distributions of the draft's port."""

import sys
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.draft.ngram import Acceptance, OwnText
from slipstream.core.draft.ngram_draft import LookupDraft, NgramDraft
from slipstream.core.draft.ngram_tree import Guesses
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.inline import finished
from slipstream.core.sequence import Delta, TokenSequence
from slipstream.core.tree import Copying, CopySource
from slipstream.core.types import Plan, SamplingParams, Session, Shape
from support.models.deltas import ByDeltas
from support.models.toy import path_tokens

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def session_of(*stop_ids, name="s"):
    return Session(name, 1, 100, stop_token_ids=frozenset(stop_ids))


def plan_of(depth, **fields):
    return Plan(depth, fields.pop("max_nodes", 99), **fields)


def by_definition(tokens, max_n):
    """The token behind the longest suffix that occurred before; of equal ones behind the last."""
    size = len(tokens)
    for n in range(min(max_n, size - 1), 0, -1):
        for start in range(size - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[size - n :]:
                return tokens[start + n]
    return None


def text_of(tokens, max_n=3):
    text = OwnText(max_n)
    text.append(tokens)
    return text


def next_of(text, path=()):
    found = text.after(path)
    return None if found is None else found[0]


def test_a_match_is_measured_beyond_what_is_searched_for():
    assert text_of([9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 4]).after() == (5, 4)
    assert text_of([5] * 6).after() == (5, 5)


@settings(max_examples=200, deadline=None)
@given(TOKENS, TOKENS, st.integers(1, 4))
def test_what_is_found_is_what_a_search_of_everything_finds(tokens, path, max_n):
    assert next_of(text_of(tokens, max_n), path) == by_definition(tokens + path, max_n)


@settings(max_examples=100, deadline=None)
@given(TOKENS, st.integers(0, 40), TOKENS)
def test_truncating_leaves_no_trace(tokens, length, more):
    text = text_of(tokens)
    text.truncate(length)
    text.append(more)
    assert text == text_of(tokens[:length] + more)


def num_lines_run(work):
    """How many lines of Python `work` takes: what holds up an event loop, counted."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("num_ids", [1, 50_000])
def test_a_long_prompt_takes_no_more_steps_of_the_event_loop_than_a_short_one(num_ids):
    draw = Random(1)
    prompt = tuple(draw.randrange(num_ids) for _ in range(131_072))
    plan = plan_of(8, lookup=Copying(1, 8))
    for draft in (ByDeltas(NgramDraft()), ByDeltas(LookupDraft(NgramDraft()))):
        for delta in (Delta(0, prompt), Delta(len(prompt), (7, 7)), Delta(9, (7, 7))):
            assert num_lines_run(partial(finished, draft.propose(session_of(), delta, plan))) < 5000


@pytest.mark.parametrize("token", [0, 0xD800, 0xFEFF, sys.maxunicode])
def test_every_id_that_a_vocabulary_may_have_is_looked_up(token):
    assert next_of(text_of([token, 1, token])) == 1


@pytest.mark.parametrize("token", [-1, sys.maxunicode + 1, 2**32])
def test_an_id_that_no_vocabulary_has_is_refused(token):
    with pytest.raises(InvalidRequest, match=f"token id {token}, not 0 to 1114111"):
        text_of([1, token])


@pytest.mark.parametrize(
    ("plan", "stop_ids", "tokens", "reason"),
    [
        (plan_of(9, max_nodes=3), (), (5, 6, 5), "nodes"),
        (plan_of(2), (), (5, 6), "depth"),
        (plan_of(9), (6,), (5, 6), "eos"),
    ],
)
async def test_a_proposal_is_a_chain_within_the_plan_up_to_a_stop_token(
    plan, stop_ids, tokens, reason
):
    delta = Delta(0, (5, 6, 5, 6))
    proposal = await ByDeltas(NgramDraft()).propose(session_of(*stop_ids), delta, plan)
    assert proposal.tree.is_chain()
    assert (proposal.tree.tokens, proposal.stopped_by) == (tokens, reason)


async def test_sessions_do_not_see_each_other_and_are_forgotten_when_released():
    draft, plan = ByDeltas(NgramDraft()), plan_of(1)
    await draft.propose(session_of(name="a"), Delta(0, (1, 2, 1)), plan)
    other = await draft.propose(session_of(name="b"), Delta(0, (1,)), plan)
    assert (len(other.tree), other.stopped_by) == (0, "none")
    await draft.release("a")
    await draft.release("never opened")
    again = await draft.propose(session_of(name="a"), Delta(0, (1,)), plan)
    assert len(again.tree) == 0


async def test_shapes_of_models_are_refused():
    with pytest.raises(UnsupportedCombination, match="chains and dynamic trees, not cape"):
        await ByDeltas(NgramDraft()).propose(
            session_of(), Delta(0, (1,)), plan_of(1, shape=Shape.CAPE)
        )


class Store:
    """An n-gram store that knows of 7 and 8 behind 6."""

    def after(self, latest):
        return [(7, 0.5), (8, 0.4)] if latest[0] == 6 else []


async def test_a_tree_has_what_the_text_and_the_store_know_and_a_chain_the_best_of_them():
    sources = Store()
    delta, plan = Delta(0, (6, 5, 6)), plan_of(2, shape=Shape.DYNAMIC)
    proposal = await ByDeltas(NgramDraft(sources)).propose(session_of(), delta, plan)
    paths = {path_tokens(proposal.tree, node) for node in range(len(proposal.tree))}
    assert paths == {(5,), (7,), (8,), (5, 6)}
    assert set(proposal.sources) == {CopySource.LOOKUP, CopySource.STORE}
    chain = await ByDeltas(NgramDraft(sources)).propose(session_of(), delta, plan_of(4))
    assert chain.tree.is_chain()
    assert chain.tree.tokens[0] in (5, 7)


def test_what_fails_behind_short_matches_says_nothing_of_long_ones():
    guesses, sequence = Guesses(None, SamplingParams()), TokenSequence(session_of())
    for token in [one for number in range(50) for one in (5, 100 + number)] + [5]:
        sequence.append((token,))
        guesses.take(sequence)
        found = guesses.after(())
    assert found[0].probability < 0.1
    sequence.append((*range(1000, 1009), *range(1000, 1008)))
    guesses.take(sequence)
    assert guesses.after(())[0].probability == 0.8


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_a_source_is_never_believed_more_than_it_says(outcomes):
    store = Acceptance()
    for expected, is_right in outcomes:
        store.learn(expected, is_right=is_right)
        assert 0 < store.share(0.7) <= 1


def test_a_source_is_believed_as_far_as_it_holds():
    right, wrong = Acceptance(), Acceptance()
    assert right.share(0.7) == pytest.approx(0.7)
    for _ in range(200):
        right.learn(0.5, is_right=True)
        wrong.learn(0.5, is_right=False)
    assert right.share(0.7) == 1
    assert wrong.share(0.7) < 0.1
