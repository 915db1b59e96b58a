"""Laws of a GliDe draft in native code: the trained module's scores, the same bits in company."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.config import NATIVE_VARIABLE
from slipstream.models.format.rope import Rotary
from slipstream.models.glide.glide_init import GlideShape, config_for_target
from slipstream.models.glide.load import draft_scorer, target_parts
from slipstream.models.native import library
from slipstream.models.native.library import kernels
from slipstream.models.scorer import Grow, KvView, Sync
from slipstream.models.threads import set_num_threads
from slipstream.models.torch.arrays import numpy_dtype
from support.models import tiny, tiny_eagle, tiny_glide
from support.models.instruction_sets import teams

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
# Each matrix is large enough for 8 bits, and its rows are whole blocks of 32.
LARGE = {
    **{"vocab_size": 263, "hidden_size": 288, "intermediate_size": 352},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 32},
}
TREE = tiny_glide.TREE
pytestmark = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")


def draft(target, num_layers=1, layers=(1, 3), head_size=40):
    shape = GlideShape(layers, head_size=head_size, max_lag=8 if layers else 0)
    config = config_for_target(target, shape, name="tiny", tokenizer_hash="t" * 64)
    return tiny_glide.draft(replace(config, num_layers=num_layers))


def large(num_layers=1):
    """A target, and a draft whose matrices are kept in 8 bits."""
    target = tiny_glide.llama(**LARGE)
    target.get_output_embeddings().weight.data *= 10
    model = draft(target, num_layers, (0, 1, 3), head_size=250)
    for value in model.parameters():
        if value.ndim > 1:
            value.data *= 0.2
    return target, model


def native(target, model):
    scorer = tiny_glide.scorer(target, model)
    assert scorer.engine.startswith("native")
    return scorer


def chain_scores(scorer, view, tokens=TOKENS, num_synced=6, state=None):
    """Scores behind the last synced token and those that follow, one by one."""
    state = state or scorer.open(64)
    found = [scorer.score([Sync(state, tokens[:num_synced], view)])]
    for parent, token in enumerate(tokens[num_synced:], start=-1):
        found.append(scorer.score([Grow(state, [token], [parent])]))
    return np.concatenate([scores.logits for scores in found])


@pytest.mark.parametrize("num_layers", [1, 2])
def test_weights_and_tokens_in_8_bits_change_scores_by_little(num_layers):
    target, model = large(num_layers)
    view, scorer = tiny_glide.view(target, TOKENS, 5), native(target, model)
    found = chain_scores(scorer, view)
    expected = tiny_glide.reference(target, model, TOKENS, 5)[5:].numpy()
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    assert scorer.weight_bytes < 1.5 * sum(at.numel() for at in model.parameters())


@pytest.mark.parametrize("num_layers", [1, 2])
def test_however_a_prefix_is_split_its_scores_have_the_same_bits(num_layers):
    target, model = large(num_layers)
    scorer, tokens = native(target, model), tiny.tokens(40)
    view = tiny_glide.view(target, tokens, 39)
    at_once = scorer.score([Sync(scorer.open(64), tokens, view)])
    for size in (1, 2, 3, 7, 12, 13, 39):
        state = scorer.open(64)
        for end in range(size, len(tokens), size):
            scorer.score([Sync(state, tokens[:end], view, is_scored=False)])
        last = scorer.score([Sync(state, tokens, view)])
        assert np.array_equal(last.logits, at_once.logits), size
        assert np.array_equal(last.hidden, at_once.hidden), size


@pytest.mark.parametrize("num_layers", [1, 2])
def test_every_path_of_a_tree_has_the_bits_of_a_chain(num_layers):
    target, model = large(num_layers)
    scorer, view = native(target, model), tiny_glide.view(target, TOKENS, 5)
    state = scorer.open(64)
    scorer.score([Sync(state, TOKENS, view)])
    rows = np.concatenate([scorer.score([Grow(state, *nodes)]).logits for nodes in TREE])
    for path, row in zip(tiny_glide.paths(), rows, strict=True):
        text = [*TOKENS, *path]
        assert np.array_equal(row, chain_scores(scorer, view, text, len(TOKENS))[-1]), path


@pytest.mark.parametrize("num_layers", [1, 2])
def test_sessions_of_a_pass_have_the_bits_that_each_has_alone(num_layers):
    target, model = large(num_layers)
    scorer = native(target, model)
    pool = scorer.pool(8)
    texts = [tiny.tokens(length, seed=length) for length in (150, 3, 40, 1)]
    views = [None, *(tiny_glide.view(target, text, len(text) - 1) for text in texts[1:3]), None]

    def asks(states, step):
        if step == 0:
            return [Sync(state, text[:1], None) for state, text in zip(states, texts, strict=True)]
        if step == 1:
            every = zip(states, texts, views, (True, True, False, True), strict=True)
            return [Sync(state, text, view, scored) for state, text, view, scored in every]
        return [
            Grow(states[0], *TREE[step - 2]),
            Sync(states[1], [*texts[1], *range(step)], views[1]),
            Grow(states[2], [5], [step - 3]),
            Grow(states[3], [5, 6], [-1, -1]),
        ]

    alone = [scorer.open(200) for _ in texts]
    # Pages of the sessions in company lie between each other's.
    beside = [scorer.open(100, pool) for _ in texts]
    for state in beside:
        state.cache.limit = 200
        state.cache.reserve(200)
    for step in range(5):
        together = scorer.score(asks(beside, step)).logits
        apart = [scorer.score([ask]).logits for ask in asks(alone, step)]
        assert np.array_equal(together, np.concatenate(apart)), step


def test_keys_of_the_target_may_lie_anyhow_in_memory():
    target, model = large()
    scorer, view = native(target, model), tiny_glide.view(target, TOKENS, 5)
    expected = chain_scores(scorer, view)
    for own in (
        lambda buffer: buffer.transpose(0, 1).clone().transpose(0, 1),
        lambda buffer: buffer[:, :5],
    ):
        layers = {layer: own(buffer) for layer, buffer in view.layers.items()}
        assert np.array_equal(chain_scores(scorer, KvView(5, layers)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_kernels_and_any_number_of_threads_give_the_same_bits(dtype, monkeypatch):
    target, model = large(2)
    target, seen = target.to(dtype), {}
    view = tiny_glide.view(target, TOKENS, 5)
    weights = tiny.weights_of(model, tiny_glide.vocab(model.config))
    for key in teams():
        monkeypatch.setenv(NATIVE_VARIABLE, key[0])
        set_num_threads(key[1])
        scorer = draft_scorer(weights, target_parts(target), dtype=numpy_dtype(dtype))
        state = scorer.open(64)
        rows = chain_scores(scorer, view, state=state)
        scorer.score([Sync(state, TOKENS, view)])
        tree = [scorer.score([Grow(state, *nodes)]) for nodes in TREE]
        seen[key] = (rows, *(part.hidden for part in tree), tree[-1].logits)
    first = next(iter(seen.values()))
    for key, values in seen.items():
        assert all(map(np.array_equal, values, first)), key


def test_all_kernels_give_the_bits_of_a_head_in_8_bits_which_changes_its_scores_little(monkeypatch):
    target, seen = tiny_glide.llama(**LARGE), []
    inv_freq = 1e4 ** (-np.arange(0, 32, 2, dtype=np.float32) / 32)
    sizes = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 32, "intermediate_size": 352}
    model = tiny_eagle.model(tiny_eagle.config(target, rotary=Rotary(inv_freq), **sizes))
    for value in model.parameters():
        value.data *= 0.2 if value.ndim > 1 else 1.0
    expected = tiny_eagle.reference(target, model, TOKENS, 5).numpy()
    for key in teams():
        monkeypatch.setenv(NATIVE_VARIABLE, key[0])
        set_num_threads(key[1])
        scorer = tiny_eagle.scorer(target, model)
        seen.append(chain_scores(scorer, tiny_eagle.view(target, TOKENS, 5)))
        assert np.array_equal(seen[0], seen[-1]), key
    assert scorer.weight_bytes < 1.5 * sum(value.numel() for value in model.parameters())
    assert np.linalg.norm(seen[0] - expected) < 0.03 * np.linalg.norm(expected)


def test_switched_off_or_in_another_dtype_torch_computes(monkeypatch, caplog):
    caplog.set_level("INFO", "slipstream.models")
    assert tiny.glide().engine == f"native {kernels()}"
    assert tiny.glide(native=False).engine == "torch"
    assert tiny.glide(dtype=torch.float16).engine == "torch"
    assert "torch computes the draft: float16 on cpu has no native kernels" in caplog.text
    monkeypatch.setenv(NATIVE_VARIABLE, "off")
    assert tiny.glide().engine == "torch"


def test_heads_that_are_rotated_in_part_are_torchs():
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    target = tiny_glide.llama(rope_parameters=rope)
    target.model.rotary_emb.inv_freq = target.model.rotary_emb.inv_freq[:2]
    assert tiny_glide.scorer(target, draft(target)).engine == "torch"
