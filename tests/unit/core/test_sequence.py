"""Tokens only grow; a round's end where the request does; engines keep up with them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import SessionOutOfSync
from slipstream.core.sequence import Delta, SyncedTokens, TokenSequence, common_prefix, finish
from slipstream.core.types import FinishReason, Session

SESSION = Session("s", 3, 9)


def sequence(*tokens):
    return TokenSequence(SESSION, tokens)


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [((), (), 0), ((1,), (), 0), ((1, 2), (1, 2), 2), ((1, 2), (1, 2, 3), 2), ((1, 2), (3, 2), 0)],
)
def test_a_common_prefix_ends_at_the_first_difference(one, other, count):
    assert common_prefix(one, other) == common_prefix(other, one) == count
    assert common_prefix(one, other, start=count) == count


@pytest.mark.parametrize("start", [-1, 4, 99])
def test_a_delta_outside_of_the_tokens_held_is_refused_and_changes_nothing(start):
    made = sequence(5, 6, 7)
    with pytest.raises(
        SessionOutOfSync, match=f"starts at position {start}, but 3 tokens are held"
    ):
        Delta(start, (1,)).applied(made)
    assert made.tokens == [5, 6, 7]


def test_receiver_and_engine_hold_what_a_sender_has_whatever_it_sends_again():
    rng = random.Random(4)
    sent, received, synced = sequence(), sequence(), SyncedTokens()
    for _ in range(500):
        if rng.random() < 0.1:
            sent = sequence(*sent.tokens[: rng.randrange(len(sent) + 1)])
        sent.append(rng.randrange(3) for _ in range(rng.randrange(4)))
        start = rng.randrange(common_prefix(received.tokens, sent.tokens) + 1)
        received = Delta.since(start, sent).applied(received)
        assert received.tokens == sent.tokens
        before = list(synced.tokens)
        assert synced.take(received) == common_prefix(before, sent.tokens)
        assert synced.tokens == sent.tokens
        synced.tokens += [rng.randrange(3) for _ in range(rng.randrange(3))]


STOP = 9


def session_of(max_tokens, *stop_ids):
    return Session("s", 1, max_tokens, stop_token_ids=frozenset(stop_ids))


@pytest.mark.parametrize(
    ("tokens", "kept", "reason"),
    [
        ((1, 2), (1, 2), None),
        ((1, STOP, 2), (1, STOP), FinishReason.STOP),
        ((STOP,), (STOP,), FinishReason.STOP),
        ((1, STOP, STOP), (1, STOP), FinishReason.STOP),
        ((1, 2, 3), (1, 2, 3), FinishReason.LENGTH),
        ((1, 2, 3, STOP), (1, 2, 3), FinishReason.LENGTH),
        ((1, 2, STOP), (1, 2, STOP), FinishReason.STOP),
        ((), (), None),
        ((1, 4, STOP), (1, 4), FinishReason.STOP),
    ],
)
def test_the_first_stop_token_or_the_limit_ends_a_round(tokens, kept, reason):
    assert finish(session_of(5, 4, STOP), 2, tokens) == (kept, reason)


def test_a_request_without_room_keeps_nothing():
    assert finish(session_of(3), 3, (1, 2)) == ((), FinishReason.LENGTH)
    assert finish(session_of(3), 4, ()) == ((), FinishReason.LENGTH)


@given(
    st.lists(st.integers(0, 12), max_size=30),
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.integers(1, 20),
)
def test_where_a_request_ends_does_not_depend_on_how_rounds_cut_it(tokens, sizes, max_tokens):
    session = session_of(max_tokens, STOP)
    whole = finish(session, 0, tokens)
    output, reason, at = [], None, 0
    for size in sizes:
        kept, reason = finish(session, len(output), tokens[at : at + size])
        output += kept
        at += size
        if reason is not None:
            break
    if reason is not None or at >= len(tokens):
        assert (tuple(output), reason) == whole
    else:
        assert tuple(output) == whole[0][: len(output)]
