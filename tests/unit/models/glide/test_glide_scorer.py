"""A scorer computes what the trained module does, however a text or tree arrives, and without what
it skips of a long text: all but the first page and the newest tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import CapacityError, ModelMismatch, WeightsError
from slipstream.models.glide.glide_config import CONFIG_NAME, WEIGHTS_NAME
from slipstream.models.glide.glide_files import save_glide
from slipstream.models.glide.glide_init import config_for_target
from slipstream.models.glide.glide_weights import check_target
from slipstream.models.glide.load import load_glide, target_parts
from slipstream.models.scorer import NUM_SINKS, Grow, Sync, num_skipped, read
from support.models import tiny_glide as tiny
from support.models.tiny import tokens as random_tokens

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
TARGETS = {
    "llama": lambda: tiny.llama(num_hidden_layers=5),
    "attention biases": tiny.qwen2,
    "query and key norms": tiny.qwen3,
    "scaled rotary": lambda: tiny.llama(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    ),
}


@pytest.fixture(autouse=True, params=["", "off"], ids=["native", "torch"])
def _engine(request, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)


def case(name="llama", num_layers=1, layers=(1, 3)):
    target = TARGETS[name]()
    shape = tiny.shape(num_layers, layers)
    shape = replace(shape, max_lag=8 if layers else 0)
    model = tiny.draft(config_for_target(target, shape, name="tiny", tokenizer_hash="t" * 64))
    return target, model, tiny.scorer(target, model)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


READERS = [("llama", layers, at) for layers in ((), (2,), (3, 0, 4, 1, 2)) for at in (1, 2)]
READERS += [(name, (1, 3), at) for name in TARGETS for at in (1, 2)]


@pytest.mark.parametrize(("name", "layers", "num_layers"), READERS)
def test_a_prefix_and_a_grown_chain_score_as_in_training(name, layers, num_layers):
    target, model, scorer = case(name, num_layers, layers)
    count = 5
    expected = tiny.reference(target, model, TOKENS, count)[5:].numpy()
    view = tiny.view(target, TOKENS, count)
    for given in (view,) if layers else (view, None):
        state = scorer.open(32)
        rows = [scorer.score([Sync(state, TOKENS[:6], given)]).logits]
        for parent, token in enumerate(TOKENS[6:], start=-1):
            rows.append(scorer.score([Grow(state, [token], [parent])]).logits)
        assert np.linalg.norm(np.concatenate(rows) - expected) < 2e-5 * np.linalg.norm(expected)
    assert scorer.max_lag == (8 if layers else None), "what is not read can't be stale"


def test_another_continuation_or_a_shorter_prefix_leaves_no_trace_of_the_first():
    target, model, scorer = case()
    state = scorer.open(32)
    scorer.score([Sync(state, [*TOKENS[:4], 50, 51, 52, 53, 54], tiny.view(target, TOKENS, 4))])
    scorer.score([Grow(state, [55, 56], [-1, -1])])
    scores = scorer.score([Sync(state, TOKENS, tiny.view(target, TOKENS, 9))])
    close(scores.logits[0], tiny.reference(target, model, TOKENS, 9)[-1])
    scores = scorer.score([Sync(state, TOKENS[:5], tiny.view(target, TOKENS, 4))])
    close(scores.logits[0], tiny.reference(target, model, TOKENS[:5], 4)[-1])


@pytest.mark.parametrize("num_layers", [1, 2])
def test_every_path_of_a_tree_scores_like_a_chain(num_layers):
    target, _, scorer = case(num_layers=num_layers)
    prefix, view = TOKENS[:6], tiny.view(target, TOKENS, 5)
    state = scorer.open(32)
    scorer.score([Sync(state, prefix, view)])
    rows = np.concatenate([scorer.score([Grow(state, *nodes)]).logits for nodes in tiny.TREE])
    for path, row in zip(tiny.paths(), rows, strict=True):
        alone = scorer.open(32)
        scorer.score([Sync(alone, prefix, view)])
        for parent, token in enumerate(path, start=-1):
            expected = scorer.score([Grow(alone, [token], [parent])])
        close(row, expected.logits[0])


def test_without_a_view_the_cross_attention_is_left_out():
    target, model, scorer = case()
    seen = scorer.score([Sync(scorer.open(16), TOKENS, tiny.view(target, TOKENS, 9))])
    blind = scorer.score([Sync(scorer.open(16), TOKENS, None)])
    assert not np.allclose(seen.logits, blind.logits, atol=1e-2)
    with torch.no_grad():
        for layer in model.layers:
            for cross in layer.cross:
                cross.o_proj.weight.zero_()
    muted = tiny.scorer(target, model)
    without = muted.score([Sync(muted.open(16), TOKENS, tiny.view(target, TOKENS, 9))])
    close(without.logits, blind.logits)


def test_the_last_tokens_own_target_position_is_never_read():
    target, _, scorer = case()
    views = [tiny.view(target, TOKENS, len(TOKENS) - at) for at in (0, 1)]
    knowing, before = (scorer.score([Sync(scorer.open(16), TOKENS, view)]) for view in views)
    close(knowing.logits, before.logits)


def test_a_full_session_is_refused():
    _, _, scorer = case()
    state = scorer.open(4)
    with pytest.raises(CapacityError, match="room for 4 tokens, 10 are needed"):
        scorer.score([Sync(state, TOKENS, None)])
    scorer.score([Sync(state, TOKENS[:3], None)])
    with pytest.raises(CapacityError):
        scorer.score([Grow(state, [1, 2], [-1, -1])])


def test_saved_weights_score_as_before(tmp_path):
    target, model, scorer = case()
    model.config = replace(model.config, dtype="float32")
    save_glide(model, tiny.vocab(model.config), tmp_path)
    loaded = load_glide(tmp_path, target_parts(target, tokenizer_hash="t" * 64))
    view = tiny.view(target, TOKENS, 9)
    expected = scorer.score([Sync(scorer.open(16), TOKENS, view)])
    found = loaded.score([Sync(loaded.open(16), TOKENS, view)])
    assert np.array_equal(found.logits, expected.logits)


OTHERS = ("vocab_size", "hidden_size", "num_heads", "head_dim")


@pytest.mark.parametrize("field", [*OTHERS, "tokenizer", "layers"])
def test_weights_for_another_target_are_refused(field):
    target, model, _ = case()
    config, hashed = model.config, "u" * 64 if field == "tokenizer" else "t" * 64
    if field in OTHERS:
        config = replace(config, **{field: getattr(config, field) * 2})
    elif field == "layers":
        config = replace(config, target_layers=(1, 9))
    with pytest.raises(ModelMismatch, match="layer 9" if field == "layers" else field):
        check_target(config, target_parts(target, tokenizer_hash=hashed))


@pytest.mark.parametrize("name", [CONFIG_NAME, WEIGHTS_NAME])
def test_a_file_that_is_cut_off_missing_or_of_another_config_is_refused(tmp_path, name):
    target, model, _ = case()
    save_glide(model, tiny.vocab(model.config), tmp_path)
    path, config = tmp_path / name, tmp_path / CONFIG_NAME
    whole, text = path.read_bytes(), config.read_text()
    config.write_text(text.replace('"intermediate_size": 48', '"intermediate_size": 50'))
    with pytest.raises(WeightsError, match="do not fit their config"):
        load_glide(tmp_path, target_parts(target))
    path.write_bytes(whole[:-20])
    for _ in range(2):
        with pytest.raises(WeightsError, match=name):
            load_glide(tmp_path, target_parts(target))
        path.unlink(missing_ok=True)


LONG = [token % tiny.VOCAB for token in random_tokens(500, seed=3)]


@pytest.fixture(params=[1, 2], ids=["one layer", "two layers"])
def long_case(request):
    target = tiny.llama(max_position_embeddings=512)
    model = tiny.draft(tiny.config(target, request.param))
    return target, model, tiny.scorer(target, model)


def scored(scorer, state, text, view, own=0):
    """Score behind a text whose beginning is computed part by part, as an engine does."""
    scorer.skip(state, max(view.skipped, own))
    tokens = read(text, max(view.skipped, own))
    for done in range(scorer.num_same(state, tokens) + 100, len(tokens), 100):
        scorer.score([Sync(state, tokens[:done], view, is_scored=False)])
    return scorer.score([Sync(state, tokens, view)]).logits[0]


@pytest.mark.parametrize("window", [128, 200, 371, 372])
def test_as_many_of_the_newest_tokens_are_read_as_the_window_has(window):
    assert len(read(LONG, num_skipped(len(LONG), window))) == min(len(LONG), NUM_SINKS + window)


@pytest.mark.parametrize(("skipped", "own"), [(0, 0), (128, 0), (256, 0), (0, 307), (128, 250)])
def test_what_is_skipped_is_as_if_it_were_not_there(long_case, skipped, own):
    target, model, scorer = long_case
    view = tiny.view(target, LONG, 499, skipped=skipped)
    expected = tiny.reference(target, model, LONG, 499, skipped, own)
    close(scored(scorer, scorer.open(520), LONG, view, own), expected[-1])


@pytest.mark.parametrize(("skipped", "own"), [(256, 0), (0, 256), (128, 300)])
def test_a_tree_behind_a_text_with_a_gap_is_scored_as_in_training(long_case, skipped, own):
    target, model, scorer = long_case
    state, view = scorer.open(400), tiny.view(target, LONG, 490, skipped=skipped)
    rows = [scored(scorer, state, LONG[:492], view, own)]
    for parent, token in enumerate(LONG[492:], start=-1):
        rows.append(scorer.score([Grow(state, [token], [parent])]).logits[0])
    expected = tiny.reference(target, model, LONG, 490, skipped, own)
    close(np.stack(rows), expected[-len(rows) :])


def test_a_session_that_skips_more_is_as_if_it_had_begun_so():
    target = tiny.llama(max_position_embeddings=512)
    model = tiny.draft(tiny.config(target))
    scorer = tiny.scorer(target, model)
    state = scorer.open(520)
    for length, skipped in ((300, 0), (420, 128), (450, 128), (500, 256)):
        text = LONG[:length]
        found = scored(scorer, state, text, tiny.view(target, text, length - 1, skipped=skipped))
        close(found, tiny.reference(target, model, text, length - 1, skipped)[-1])


def test_a_text_of_which_more_is_read_again_leaves_no_trace_of_the_gap(long_case):
    target, _, scorer = long_case
    state = scorer.open(520)
    scored(scorer, state, LONG, tiny.view(target, LONG, 499, skipped=256))
    whole = tiny.view(target, LONG, 499)
    fresh = scored(scorer, scorer.open(520), LONG, whole)
    close(scored(scorer, state, LONG, whole), fresh)


def test_keys_that_have_not_come_are_counted_by_position(long_case):
    target, _, _ = long_case
    view = tiny.view(target, LONG, 490, skipped=256)
    assert (view.num_held, view.lag(492)) == (234, 1)
    assert view.lag(384) == 384, "the text ends where nothing is read"
