"""Readers of an engine's cache: copies of what is final, in order, and an end with the session."""

import numpy as np
import pytest

from slipstream.core.errors import SessionClosed
from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, Session
from support.models import tiny

PROMPT = tuple(tiny.tokens(20))
SESSION = Session("s", len(PROMPT), 50)


@pytest.fixture(scope="module")
def model():
    return tiny.causal()


@pytest.fixture
def target(model):
    made = tiny.local_target(model, free_rows=8)
    verify(made, PROMPT)
    return made


def verify(target, tokens):
    return tuple(finished(target.verify(TokenSequence(SESSION, tokens), Proposal())).tokens)


def test_a_slice_is_a_copy(target):
    piece = target.kv_sender("s", (1,), 0).take(64)
    before = piece.values.copy()
    for keys_or_values in target.view("s", (1,)).layers[1]:
        keys_or_values.fill(7)
    assert np.array_equal(piece.values, before)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_tap_ends_with_its_session_and_does_not_read_its_successor(target, is_followed):
    tap = target.kv_sender("s", (0,), 0)
    finished(target.release("s"))
    if is_followed:
        verify(target, PROMPT)
    with pytest.raises(SessionClosed):
        tap.take(8)


def test_bytes_are_counted_for_each_session_and_for_all(target):
    one = target.kv_bytes("s")
    assert one > 0
    finished(target.verify(TokenSequence(Session("t", 20, 300), PROMPT), Proposal()))
    assert target.kv_bytes("t") > one
    assert target.memory.pool.num_used_bytes == one + target.kv_bytes("t")
    finished(target.release("t"))
    # The prompt's only page stays for whoever begins alike.
    kept = target.memory.num_cached_bytes
    assert kept == target.layout.bytes_per_page
    assert (target.kv_bytes("t"), target.memory.pool.num_used_bytes) == (0, one + kept)
