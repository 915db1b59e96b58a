"""The fast path computes what the trained module computes, however a prefix or tree arrives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.config import NATIVE_VARIABLE
from slipstream.core.errors import CapacityError, ModelMismatch, WeightsError
from slipstream.models.glide.glide_config import CONFIG_NAME, WEIGHTS_NAME
from slipstream.models.glide.glide_files import save_glide
from slipstream.models.glide.glide_scorer import load_glide
from slipstream.models.glide.glide_weights import check_target
from slipstream.models.glide.target_parts import target_parts
from slipstream.models.scorer import Grow, Sync
from support.models import tiny_glide as tiny

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
TARGETS = {
    "llama": tiny.llama,
    "attention biases": tiny.qwen2,
    "query and key norms": tiny.qwen3,
    "scaled rotary": lambda: tiny.llama(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    ),
}


@pytest.fixture(autouse=True, params=["", "off"], ids=["native", "torch"])
def _engine(request, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, request.param)


def case(name="llama", num_layers=1):
    target = TARGETS[name]()
    model = tiny.draft(tiny.config(target, num_layers))
    return target, model, tiny.scorer(target, model)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_prefix_and_a_grown_chain_score_as_in_training(name, num_layers):
    target, model, scorer = case(name, num_layers)
    count = 5
    state = scorer.open(32)
    view = tiny.view(target, TOKENS, count)
    rows = [scorer.score([Sync(state, TOKENS[:6], view)]).logits]
    rows += [
        scorer.score([Grow(state, [token], [parent])]).logits
        for parent, token in enumerate(TOKENS[6:], start=-1)
    ]
    close(np.concatenate(rows), tiny.reference(target, model, TOKENS, count)[5:])


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_draft_that_reads_no_layers_scores_alike_with_any_view(num_layers):
    target = tiny.llama()
    config = replace(tiny.config(target, num_layers), target_layers=(), max_lag=0)
    model = tiny.draft(config)
    scorer = tiny.scorer(target, model)
    expected = tiny.reference(target, model, TOKENS, 0)
    for view in (None, tiny.view(target, TOKENS, 4)):
        state = scorer.open(32)
        close(scorer.score([Sync(state, TOKENS[:-1], view)]).logits[0], expected[-2])
        close(scorer.score([Grow(state, TOKENS[-1:], [-1])]).logits[0], expected[-1])
    assert scorer.max_lag is None, "what is not read can't be stale"


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
    tokens, parents = [10, 11, 12, 13, 14, 15], [-1, -1, 0, 0, 1, 3]
    grown = [
        scorer.score([Grow(state, tokens[:2], parents[:2])]),
        scorer.score([Grow(state, tokens[2:5], parents[2:5])]),
    ]
    grown.append(scorer.score([Grow(state, tokens[5:], parents[5:])]))
    rows = np.concatenate([scores.logits for scores in grown])
    for node, row in enumerate(rows):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        chain = scorer.open(32)
        scorer.score([Sync(chain, prefix, view)])
        for parent, index in enumerate(path, start=-1):
            expected = scorer.score([Grow(chain, [tokens[index]], [parent])])
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


def test_scores_are_float32_and_named_by_an_ascending_vocabulary():
    _, model, scorer = case()
    scores = scorer.score([Sync(scorer.open(16), TOKENS, None)])
    assert scores.logits.dtype == scores.hidden.dtype == np.float32
    assert scores.logits.shape == (1, model.config.head_size)
    assert scores.hidden.shape == (1, scorer.hidden_size)
    assert scorer.vocab.tolist() == sorted(set(scorer.vocab.tolist()))
    assert scorer.max_lag == model.config.max_lag


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
    loaded = load_glide(tmp_path, target, tokenizer_hash="t" * 64)
    view = tiny.view(target, TOKENS, 9)
    expected = scorer.score([Sync(scorer.open(16), TOKENS, view)])
    found = loaded.score([Sync(loaded.open(16), TOKENS, view)])
    assert np.array_equal(found.logits, expected.logits)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_heads", "head_dim"])
def test_weights_of_another_shape_of_target_are_refused(field):
    target, model, _ = case()
    other = replace(model.config, **{field: getattr(model.config, field) * 2})
    with pytest.raises(ModelMismatch, match=field):
        check_target(other, target_parts(target))


def test_weights_for_another_tokenizer_or_a_layer_the_target_lacks_are_refused():
    target, model, _ = case()
    with pytest.raises(ModelMismatch, match="tokenizer"):
        check_target(model.config, target_parts(target, tokenizer_hash="u" * 64))
    with pytest.raises(ModelMismatch, match="layer 9"):
        check_target(replace(model.config, target_layers=(1, 9)), target_parts(target))


def saved(tmp_path):
    target, model, _ = case()
    save_glide(model, tiny.vocab(model.config), tmp_path)
    return target


@pytest.mark.parametrize("name", [CONFIG_NAME, WEIGHTS_NAME])
def test_a_file_that_is_cut_off_or_missing_is_named(tmp_path, name):
    target = saved(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-20])
    for _ in range(2):
        with pytest.raises(WeightsError, match=name):
            load_glide(tmp_path, target)
        path.unlink(missing_ok=True)


def test_weights_that_do_not_fit_their_config_are_refused(tmp_path):
    target = saved(tmp_path)
    path = tmp_path / CONFIG_NAME
    path.write_text(path.read_text().replace('"intermediate_size": 48', '"intermediate_size": 50'))
    with pytest.raises(WeightsError, match="do not fit their config"):
        load_glide(tmp_path, target)
