"""Nothing after the end of a request survives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.sequence import finish
from slipstream.core.types import FinishReason, Session

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
