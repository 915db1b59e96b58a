"""Weights in 4-bit blocks: native code computes with them, and only with those of its own draft."""

from copy import deepcopy
from functools import cache
from shutil import copytree

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from slipstream.core.errors import WeightsError
from slipstream.models.glide.glide_config import WEIGHTS_NAME
from slipstream.models.glide.glide_files import glide_model, load_weights, save_blocks, save_glide
from slipstream.models.glide.glide_weights import (
    BLOCKS_NAME,
    HEAD,
    GlideBlocks,
    block_shapes,
    read_glide,
    rows_digest,
)
from slipstream.models.glide.load import draft_scorer, load_glide, target_parts
from slipstream.models.native import library
from slipstream.models.scorer import Sync
from slipstream.models.torch.arrays import as_array
from slipstream.train.gptq import gptq
from support.models import tiny_glide as tiny
from support.models.tiny import weights_of

TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
TARGETS = {"plain": tiny.llama, "biases": tiny.qwen2, "norms of heads": tiny.qwen3}
needs_native = pytest.mark.skipif(not library.PATH.is_file(), reason="no native kernels were built")


def rounded(target, model):
    """Every linear and the head, each rounded as if all inputs were independent."""
    head = target.get_output_embeddings().weight.detach()[tiny.vocab(model.config)]
    own = {**model.state_dict(), HEAD: head}
    return {
        name: gptq(own[name], torch.eye(own[name].shape[1])) for name in block_shapes(model.config)
    }, head


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return cache(lambda name: make(tmp_path_factory.mktemp("draft"), name))


@pytest.fixture
def saved(made, tmp_path):
    """Return a target, its draft, whose weights `tmp_path` has in blocks now, and their head."""

    def save(name="plain"):
        folder, *rest = made(name)
        copytree(folder, tmp_path, dirs_exist_ok=True)
        return deepcopy(rest)

    return save


def make(folder, name):
    target = TARGETS[name](intermediate_size=64)
    model = tiny.draft(tiny.config(target, 2))
    for value in model.parameters():
        if value.ndim > 1:
            value.data *= 0.2
    save_glide(model.bfloat16(), tiny.vocab(model.config), folder)
    model = glide_model(read_glide(folder)).float()
    matrices, head = rounded(target, model)
    blocks = {at: as_array(own.packed()) for at, own in matrices.items()}
    save_blocks(GlideBlocks(blocks, blocks.pop(HEAD), rows_digest(as_array(head))), folder)
    head_weights = matrices.pop(HEAD).weights()
    for at, own in matrices.items():
        model.get_parameter(at).data = own.weights()
    return folder, target, model, head_weights


def scores(scorer, target):
    view = tiny.view(target, TOKENS, len(TOKENS) - 1)
    return scorer.score([Sync(scorer.open(32), TOKENS, view)])


@needs_native
@pytest.mark.parametrize("name", TARGETS)
def test_native_scores_are_those_of_the_module_with_the_weights_in_blocks(saved, tmp_path, name):
    target, model, head = saved(name)
    scorer = load_glide(tmp_path, target_parts(target))
    assert scorer.engine.startswith("native") and scorer.engine.endswith(" Q4_1")
    vocab = tiny.vocab(model.config)
    exact = draft_scorer(
        weights_of(model, vocab), target_parts(target), dtype=scorer.layout.dtype, native=False
    )
    expected = scores(exact, target).hidden @ head.numpy().T
    found = scores(scorer, target).logits
    # Tokens are rounded to 8 bits for products with blocks.
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    (tmp_path / BLOCKS_NAME).unlink()
    assert scorer.weight_bytes < load_glide(tmp_path, target_parts(target)).weight_bytes


@needs_native
def test_the_head_of_another_target_is_rounded_to_8_bits_with_a_line_in_the_log(
    saved, tmp_path, caplog
):
    caplog.set_level("INFO", "slipstream.models")
    target, _, _ = saved()
    coded = scores(load_glide(tmp_path, target_parts(target)), target)
    assert not caplog.text
    target.get_output_embeddings().weight.data *= 2
    scorer = load_glide(tmp_path, target_parts(target))
    assert scorer.engine.endswith("Q4_1+Q8_0")
    assert "blocks are of another target's head" in caplog.text
    own = scores(scorer, target)
    assert np.linalg.norm(own.logits - 2 * coded.logits) < 0.2 * np.linalg.norm(own.logits)


def test_a_head_in_another_type_that_rounds_to_the_same_bfloat16_is_the_same():
    rows = np.float32([[1.0, -3.0], [0.1, 2.5]])
    near = rows * np.float32(1 + 2**-12)
    assert rows_digest(rows) == rows_digest(near) != rows_digest(rows * 2)


def test_torch_computes_with_the_weights_as_they_were_trained(saved, tmp_path, monkeypatch):
    target, _, _ = saved()
    weights = read_glide(tmp_path)
    parts = target_parts(target)
    with_blocks, without = (
        draft_scorer(at, parts, dtype=parts.dtype, native=False)
        for at in (weights, weights_of(*load_weights(tmp_path)))
    )
    assert np.array_equal(scores(with_blocks, target).logits, scores(without, target).logits)


@pytest.mark.parametrize("kind", ["missing", "more", "rows", "type", "cut off"])
def test_blocks_that_do_not_fit_the_config_are_refused(saved, tmp_path, kind):
    target, _, _ = saved()
    path, name = tmp_path / BLOCKS_NAME, "layers.1.mlp.up_proj.weight"
    tensors, wanted = load_file(path), "does not fit the draft's config: "
    if kind == "missing":
        del tensors[name]
    elif kind == "more":
        tensors[f"{name}s"] = tensors[name]
        name = f"{name}s"
    elif kind != "cut off":
        own = tensors[name]
        tensors[name] = own[:-1] if kind == "rows" else own.astype(np.float32)
    save_file(tensors, path)
    if kind == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
        wanted, name = "q4_1.safetensors can't be loaded", ""
    with pytest.raises(WeightsError, match=f"{wanted}{name}"):
        load_glide(tmp_path, target_parts(target))


def test_inputs_that_are_no_whole_blocks_are_refused():
    config = tiny.config(tiny.llama())
    with pytest.raises(WeightsError, match=r"down_proj.weight has 48 inputs, .* multiple of 32"):
        block_shapes(config)


def test_blocks_of_other_weights_are_refused_by_the_digest_of_the_whole_file(saved, tmp_path):
    target, _, _ = saved()
    path = tmp_path / WEIGHTS_NAME
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(WeightsError, match="made of other weights of this draft: run `slipstream"):
        load_glide(tmp_path, target_parts(target))
    load_weights(tmp_path)  # as training does, which reads no blocks
