"""A draft starts from its target: what is copied, what is refused, which tokens its head keeps."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from slipstream.core.errors import ModelMismatch, WeightsError
from slipstream.models.glide.glide import rotate
from slipstream.models.glide.glide_config import read_config
from slipstream.models.glide.glide_init import (
    GlideShape,
    config_for_target,
    init_from_target,
    trimmed_vocab,
)
from support.models import tiny_glide as tiny


def test_sublayers_start_from_the_layers_they_stand_for():
    target = tiny.llama()
    draft = init_from_target(target, tiny.config(target))
    layer, layers = draft.layers[0], target.model.layers
    assert torch.equal(layer.self_attn.k_proj.weight, layers[3].self_attn.k_proj.weight)
    assert torch.equal(layer.mlp.down_proj.weight, layers[3].mlp.down_proj.weight)
    assert torch.equal(layer.cross[0].q_proj.weight, layers[1].self_attn.q_proj.weight)
    assert torch.equal(layer.cross[1].o_proj.weight, layers[3].self_attn.o_proj.weight)
    assert torch.equal(draft.norm.weight, target.model.norm.weight)


def test_a_deeper_draft_with_biases_or_head_norms_starts_from_the_last_layers_in_order():
    for target, part in ((tiny.qwen2(), "q_proj.bias"), (tiny.qwen3(), "q_norm.weight")):
        layers = target.model.layers
        layers[1].self_attn.get_parameter(part).data.fill_(3.0)
        draft = init_from_target(target, tiny.config(target, num_layers=2))
        for ours, theirs in zip(draft.layers, layers[2:], strict=True):
            assert torch.equal(ours.mlp.up_proj.weight, theirs.mlp.up_proj.weight)
        assert (draft.layers[0].cross[0].get_parameter(part) == 3.0).all()


GPT = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11)
UNFIT = [
    (lambda: tiny.llama(attention_bias=True), tiny.shape(), "o_proj has a bias"),
    (tiny.llama, tiny.shape(target_layers=(1, 7)), r"\[7\] do not exist, the target has 4"),
    (lambda: tiny.llama(hidden_act="gelu"), tiny.shape(), "gelu"),
    (lambda: GPT2LMHeadModel(GPT), GlideShape((0,), 5, 4), "rotary"),
]


@pytest.mark.parametrize(("make", "shape", "reason"), UNFIT)
def test_a_target_that_a_draft_can_not_read_is_refused(make, shape, reason):
    with pytest.raises(ModelMismatch, match=reason):
        target = make()
        init_from_target(target, config_for_target(target, shape, name="x", tokenizer_hash="x"))


def test_a_partial_rotation_leaves_the_rest_alone():
    cos, sin = torch.randn(3, 4), torch.randn(3, 4)
    x = torch.randn(2, 3, 8)
    turned = rotate(x, cos, sin)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], rotate(x[..., :4].contiguous(), cos, sin))


COUNTS, EQUAL = torch.tensor([0, 5, 0, 9, 1, 5, 7]), torch.ones(6)
TRIMMED = [(COUNTS, 3, [0], [0, 3, 6]), (COUNTS, 4, [], [1, 3, 5, 6])]
TRIMMED += [(EQUAL, 2, [5], [0, 5]), (EQUAL, 1, [5, 3], [3, 5])]


@pytest.mark.parametrize(("counts", "size", "forced", "kept"), TRIMMED)
def test_the_trimmed_vocabulary_is_the_frequent_the_lower_of_equals_and_all_forced(
    counts, size, forced, kept
):
    assert trimmed_vocab(counts, size, forced=forced).tolist() == kept


SENSELESS = [
    *({"head_size": 0}, {"head_size": 62}, {"target_layers": ()}, {"target_layers": (1, 1)}),
    *({"max_lag": -1, "target_layers": ()}, {"target_layers": (-1,)}, {"num_kv_heads": 3}),
    *({"max_lag": 0}, {"format_version": 2}),
]
TEXTS = ["[]", "{}", '{"target_layers": 3}', '{"target_layers": [1], "other": 1}']


@pytest.mark.parametrize("given", [*SENSELESS, *TEXTS])
def test_a_config_that_makes_no_sense_or_a_file_of_another_shape_is_refused(tmp_path, given):
    if isinstance(given, dict):
        with pytest.raises(WeightsError):
            replace(tiny.config(tiny.llama()), **given)
        return
    (tmp_path / "config.json").write_text(given)
    with pytest.raises(WeightsError, match=r"config\.json"):
        read_config(tmp_path)
