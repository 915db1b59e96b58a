"""A served EAGLE-3 head scores as the module that is trained, however a text or tree arrives."""

import numpy as np
import pytest

from slipstream.config import NATIVE_VARIABLE
from slipstream.models.scorer import NUM_SINKS, Grow, Sync
from support.models import tiny_eagle, tiny_glide
from support.models.tiny import tokens as random_tokens

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
FORMS = {
    "llama": {},
    "biases": {"attention_bias": True},
    "query and key norms": {"qk_norm": True},
    "a norm before the residual": {"norms_residual": True},
    "a norm of all states": {"norms_states": True},
    "norms of each state and of outputs": {"norms_each_state": True, "norms_output": True},
    "all tokens": {"head_size": tiny_glide.VOCAB},
}


@pytest.fixture(autouse=True, params=["", "off"], ids=["native", "torch"])
def _engine(request, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)


def case(name="llama"):
    target = tiny_glide.llama(max_position_embeddings=512)
    model = tiny_eagle.model(tiny_eagle.config(target, **FORMS[name]))
    return target, model, tiny_eagle.scorer(target, model)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-4)


def chain(scorer, view, text, num_synced, state=None):
    """Scores behind the last synced token and those that follow, one by one."""
    state = state or scorer.open(600)
    rows = [scorer.score([Sync(state, text[:num_synced], view)]).logits]
    for parent, token in enumerate(text[num_synced:], start=-1):
        rows.append(scorer.score([Grow(state, [token], [parent])]).logits)
    return np.concatenate(rows)


@pytest.mark.parametrize("name", FORMS)
def test_a_prefix_and_a_grown_chain_score_as_in_training(name):
    target, model, scorer = case(name)
    view = tiny_eagle.view(target, TOKENS, 5)
    close(chain(scorer, view, TOKENS, 6), tiny_eagle.reference(target, model, TOKENS, 5))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_where_the_view_lags_outputs_of_the_head_take_the_place_of_states(count):
    target, model, scorer = case("norms of each state and of outputs")
    view = tiny_eagle.view(target, TOKENS, count)
    expected = tiny_eagle.reference(target, model, TOKENS, count)
    for size in range(count + 1, len(TOKENS) + 1):
        close(chain(scorer, view, TOKENS, size), expected[size - 1 - count :])


def test_tokens_are_computed_anew_once_their_states_are_there():
    target, model, scorer = case()
    state = scorer.open(64)
    for count, size in ((2, 6), (4, 6), (5, 6), (5, 8), (9, 10), (3, 10), (9, 10)):
        found = scorer.score([Sync(state, TOKENS[:size], tiny_eagle.view(target, TOKENS, count))])
        scorer.score([Grow(state, [55, 56], [-1, -1])])
        close(found.logits[0], tiny_eagle.reference(target, model, TOKENS[:size], count)[-1])


def test_another_text_leaves_no_trace_of_the_first():
    target, model, scorer = case()
    state = scorer.open(64)
    for first in (TOKENS[0], 20, TOKENS[0]):
        text = [first, *TOKENS[1:]]
        found = chain(scorer, tiny_eagle.view(target, text, 9), text, 10, state)
        close(found, tiny_eagle.reference(target, model, text, 9))
    assert scorer.num_same(state, TOKENS) == 10
    assert scorer.num_same(state, [20, *TOKENS[1:]]) == 0


def test_every_path_of_a_tree_scores_like_a_chain():
    target, _, scorer = case()
    view, state = tiny_eagle.view(target, TOKENS, 9), scorer.open(64)
    scorer.score([Sync(state, TOKENS, view, is_scored=False)])
    rows = np.concatenate([scorer.score([Grow(state, *nodes)]).logits for nodes in tiny_glide.TREE])
    for path, row in zip(tiny_glide.paths(), rows, strict=True):
        close(row, chain(scorer, view, [*TOKENS, *path], len(TOKENS))[-1])


def test_sessions_of_a_pass_score_as_each_alone():
    target, _, scorer = case()
    pool = scorer.pool(8)
    texts = [TOKENS, TOKENS[:4], TOKENS[:1], TOKENS[:7]]
    views = [tiny_eagle.view(target, TOKENS, count) for count in (9, 1, 1, 6)]
    asks = [Sync(scorer.open(32, pool), *pair) for pair in zip(texts, views, strict=True)]
    asks[3] = Sync(asks[3].state, TOKENS[:7], views[3], is_scored=False)
    found = scorer.score(asks).logits
    pairs = zip(texts[:3], views[:3], strict=True)
    alone = [scorer.score([Sync(scorer.open(32), *pair)]).logits for pair in pairs]
    close(found, np.concatenate(alone))


@pytest.mark.parametrize(("skipped", "count"), [(0, 499), (256, 499), (256, 490)])
def test_what_is_skipped_of_a_text_is_as_if_it_were_not_there(skipped, count):
    target, model, scorer = case()
    text = [token % tiny_glide.VOCAB for token in random_tokens(500, seed=3)]
    view, state = tiny_eagle.view(target, text, count, skipped), scorer.open(600)
    scorer.skip(state, skipped)
    kept = text[:NUM_SINKS] + text[NUM_SINKS + skipped :]
    for done in range(100, len(kept), 100):
        scorer.score([Sync(state, kept[:done], view, is_scored=False)])
    found = scorer.score([Sync(state, kept, view)]).logits[0]
    close(found, tiny_eagle.reference(target, model, text, count, skipped)[-1])
