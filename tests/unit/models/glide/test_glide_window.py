"""A draft that skips the middle of a long text reads its first page and its newest tokens."""

import numpy as np
import pytest

from slipstream.config import NATIVE_VARIABLE
from slipstream.models.kv.pool import BLOCK_SIZE
from slipstream.models.scorer import NUM_SINKS, Grow, Sync, num_skipped
from support.models import tiny, tiny_glide

TEXT = [token % tiny_glide.VOCAB for token in tiny.tokens(500, seed=3)]


@pytest.fixture(autouse=True, params=["", "off"], ids=["native", "torch"])
def _engine(request, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)


@pytest.fixture(params=[1, 2], ids=["one layer", "two layers"])
def case(request):
    target = tiny_glide.llama(max_position_embeddings=512)
    model = tiny_glide.draft(tiny_glide.config(target, request.param))
    return target, model, tiny_glide.scorer(target, model)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def scored(scorer, state, text, view):
    """Score behind a text whose beginning is computed part by part, as an engine does."""
    scorer.skip(state, view.skipped)
    read = view.read(text)
    for done in range(scorer.num_same(state, read) + 100, len(read), 100):
        scorer.score([Sync(state, read[:done], view, is_scored=False)])
    return scorer.score([Sync(state, read, view)]).logits[0]


@pytest.mark.parametrize("window", [128, 200, 371, 372])
def test_as_many_of_the_newest_tokens_are_read_as_the_window_has(window):
    skipped = num_skipped(len(TEXT), window)
    assert skipped % NUM_SINKS == 0
    assert NUM_SINKS == BLOCK_SIZE, "pages move as wholes, and the first one stays"
    num_newest = len(TEXT) - NUM_SINKS - skipped
    assert window <= num_newest < window + 128 or skipped == 0


@pytest.mark.parametrize("skipped", [0, 128, 256])
def test_what_is_skipped_is_as_if_it_were_not_there(case, skipped):
    target, model, scorer = case
    view = tiny_glide.view(target, TEXT, 499, skipped=skipped)
    expected = tiny_glide.reference(target, model, TEXT, 499, skipped)
    close(scored(scorer, scorer.open(520), TEXT, view), expected[-1])


def test_a_tree_behind_a_text_with_a_gap_is_scored_as_in_training(case):
    target, model, scorer = case
    state, view = scorer.open(400), tiny_glide.view(target, TEXT, 490, skipped=256)
    rows = [scored(scorer, state, TEXT[:492], view)]
    for parent, token in enumerate(TEXT[492:], start=-1):
        rows.append(scorer.score([Grow(state, [token], [parent])]).logits[0])
    expected = tiny_glide.reference(target, model, TEXT, 490, 256)
    close(np.stack(rows), expected[-len(rows) :])


def test_a_session_that_skips_more_computes_nothing_anew():
    target = tiny_glide.llama(max_position_embeddings=512)
    model = tiny_glide.draft(tiny_glide.config(target))
    scorer = tiny_glide.scorer(target, model)
    state = scorer.open(520)
    for length, skipped in ((300, 0), (420, 128), (450, 128), (500, 256)):
        text = TEXT[:length]
        view = tiny_glide.view(target, text, length - 1, skipped=skipped)
        found = scored(scorer, state, text, view)
        close(found, tiny_glide.reference(target, model, text, length - 1, skipped)[-1])
    scorer.skip(state, 384)
    assert scorer.num_same(state, [*TEXT[:128], *TEXT[512:]]) == 128
    assert state.tokens == TEXT[:128], "nothing behind position 512 was there"


def test_a_text_of_which_more_is_read_again_leaves_no_trace_of_the_gap(case):
    target, _, scorer = case
    state = scorer.open(520)
    scored(scorer, state, TEXT, tiny_glide.view(target, TEXT, 499, skipped=256))
    whole = tiny_glide.view(target, TEXT, 499)
    fresh = scored(scorer, scorer.open(520), TEXT, whole)
    close(scored(scorer, state, TEXT, whole), fresh)


def test_keys_that_have_not_come_are_counted_by_position(case):
    target, _, _ = case
    view = tiny_glide.view(target, TEXT, 490, skipped=256)
    assert (view.num_held, view.lag(492)) == (234, 1)
    assert view.lag(384) == 384, "the text ends where nothing is read"
