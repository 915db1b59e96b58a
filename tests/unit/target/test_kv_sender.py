"""Readers of an engine's cache: copies of what is final, in order, and an end with the session."""

import numpy as np
import pytest

from slipstream.core.errors import InvalidRequest, SessionClosed, SessionNotFound, SessionOutOfSync
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


def test_slices_follow_each_other_up_to_what_is_final(target):
    tap = target.kv_sender("s", (1, 0), 0)
    pieces = [tap.take(8), tap.take(8), tap.take(8)]
    assert [(piece.start, piece.count) for piece in pieces] == [(0, 8), (8, 8), (16, 4)]
    assert tap.take(8) is None
    view = target.view("s", (1, 0))
    whole = np.concatenate([piece.values for piece in pieces], 2)
    for got, layer in zip(whole, (1, 0), strict=True):
        assert np.array_equal(got, np.concatenate(view.layers[layer])[:, :20])


def test_a_slice_is_a_copy(target):
    piece = target.kv_sender("s", (1,), 0).take(64)
    before = piece.values.copy()
    for keys_or_values in target.view("s", (1,)).layers[1]:
        keys_or_values.fill(7)
    assert np.array_equal(piece.values, before)


def test_a_new_token_is_one_more_position(target):
    tap = target.kv_sender("s", (0,), 20)
    assert tap.take(64) is None
    verify(target, PROMPT + verify(target, PROMPT))
    piece = tap.take(64)
    assert (piece.start, piece.start + piece.count) == (19, 21)


def test_a_reader_that_is_ahead_of_a_truncation_starts_again_there(target):
    tap, behind = target.kv_sender("s", (0,), 20), target.kv_sender("s", (0,), 3)
    verify(target, (*PROMPT[:10], *tiny.tokens(12, seed=5)))
    assert (tap.position, behind.position) == (10, 3)
    assert tap.take(64).count == 12


@pytest.mark.parametrize("layers", [(), (0, 0), (3,), (-1,)])
def test_layers_that_are_not_there_are_refused(target, layers):
    with pytest.raises(InvalidRequest):
        target.kv_sender("s", layers, 0)


@pytest.mark.parametrize("start", [-1, 21])
def test_a_start_outside_of_what_is_held_is_refused(target, start):
    with pytest.raises(SessionOutOfSync, match="20 positions are held"):
        target.kv_sender("s", (0,), start)


def test_an_unknown_session_has_no_tap(target):
    with pytest.raises(SessionNotFound):
        target.kv_sender("t", (0,), 0)


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
