"""EAGLE-3 heads in training: training-time test against chains step by step, and their files."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file

from slipstream.core.errors import ModelMismatch
from slipstream.models.eagle.eagle_init import head_config, head_from_target
from slipstream.models.eagle.eagle_weights import read_eagle
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.torch_parts import model_parts, rope_of
from slipstream.train.config import EagleLoss
from slipstream.train.eagle import EagleMethod
from slipstream.train.features import FeatureSet
from slipstream.train.glide import Frozen
from support.models import tiny_glide as tiny
from support.models.tiny_training import eagle_run, train, training_place
from unit.train.test_train_features import data_file

VOCAB, LAYERS, STEPS = torch.arange(0, 60, 2), (1, 2, 3), 3


@pytest.fixture(scope="module")
def made():
    """A head that is no copy of its target any more, and a batch of three documents."""
    target = tiny.llama(tie_word_embeddings=False)
    head = head_from_target(target, head_config(target, LAYERS, len(VOCAB)), VOCAB)
    torch.manual_seed(3)
    for value in head.parameters():
        value.data += 0.3 * torch.randn_like(value) / value.shape[-1] ** 0.5
    parts = model_parts(target)
    rope = rope_of(parts.rotary(64), parts.embedding)
    frozen = Frozen(parts.embedding, parts.head_rows(VOCAB), VOCAB, rope)
    batch = FeatureSet([data_file()], target, (), inputs=LAYERS).batch([2, 1, 0])
    return EagleMethod(head, frozen, EagleLoss(unrolled=STEPS, prompt_weight=0.25), {}), batch


def chain(method, batch, row, start):
    """The states [STEPS, d] of the chain that begins with the pair at `start`, key by key."""
    head, layer, rope = method.model, method.model.midlayer, method.frozen.rope
    features = head.fused(batch.states[row].float())
    x = F.embedding(batch.ids[row], method.frozen.embeddings)

    def projected(place, feature):
        both = torch.cat((layer.input_layernorm(x[place + 1]), layer.hidden_norm(feature)))
        turned = Rope(rope.cos[place : place + 1], rope.sin[place : place + 1])
        return [part[0, :, 0] for part in layer.self_attn.projected(both[None, None], turned)]

    seen = [projected(place, features[place])[1:] for place in range(start)]
    feature, states = features[start], []
    for place in range(start, min(start + STEPS, int(batch.lengths[row]) - 1)):
        query, *own = projected(place, feature)
        seen.append(own)
        keys, values = (torch.stack(part, 1) for part in zip(*seen, strict=True))
        shares = ((keys @ query[..., None])[..., 0] / query.shape[-1] ** 0.5).softmax(-1)
        out = feature + layer.self_attn.joined((shares[:, None] @ values)[None])[0, 0]
        feature = out + layer.mlp(layer.post_attention_layernorm(out))
        states.append(head.norm(feature))
    return states


@torch.no_grad()
def test_the_loss_is_that_of_chains_step_by_step_and_so_are_the_matches(made):
    method, batch = made
    head, total, weights = method.model, 0.0, 0.0
    wanted = torch.zeros(STEPS, *batch.ids.shape, dtype=torch.bool)
    for row, (length, prompt) in enumerate(zip(batch.lengths, batch.num_prompts, strict=True)):
        for start in range(int(length) - 1):
            for step, state in enumerate(chain(method, batch, row, start)):
                place = start + 1 + step  # whose next token is predicted
                scores, best = head.lm_head(state), batch.argmax[row, place]
                is_generated = place >= prompt - 1
                wanted[step, row, place] = is_generated and VOCAB[scores.argmax()] == best
                weight = 0.8**step * (1.0 if is_generated else 0.25) * (best in VOCAB)
                probs = (batch.hidden[row, place].float() @ method.frozen.head.T).softmax(-1)
                total -= weight * float((probs * scores.log_softmax(-1)).sum())
                weights += weight
    found = method.loss(head, batch, torch.zeros(3, 2))
    torch.testing.assert_close(found.value, torch.tensor(total), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.weight, torch.tensor(float(weights)))
    assert torch.equal(method.matches(batch, STEPS), wanted)
    assert wanted[1:].any() and not wanted.all()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return training_place(tmp_path_factory.mktemp("eagle"))


def as_json(path):
    return json.loads(path.read_text())


def test_a_run_leaves_a_head_in_the_published_layout_that_a_run_can_start_from(place, tmp_path):
    run = eagle_run(place, tmp_path)
    assert all(len(check.heldout.acceptance) == 7 for check in train(run))
    raw, files = (
        json.loads((run.out / "config.json").read_text()),
        load_file(run.out / "model.safetensors"),
    )
    assert raw["architectures"] == ["LlamaForCausalLMEagle3"] and raw["draft_vocab_size"] == 30
    assert raw["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2], "outputs"
    ids = files["d2t"] + np.arange(30)
    assert np.array_equal(np.flatnonzero(files["t2d"]), ids) and 60 in ids
    assert np.array_equal(read_eagle(run.out, 4).vocab, ids)
    next_run = eagle_run(place, tmp_path / "next", init_from=run.out, head_size=20)
    train(next_run)
    assert np.array_equal(read_eagle(next_run.out, 4).vocab, ids), "the vocabulary stays"
    record = as_json(next_run.out / "provenance.json")
    assert record["settings"]["loss"]["unrolled"] == 3
    assert record["started_from"]["command"] == "slipstream train eagle3"
    with pytest.raises(ModelMismatch, match="reads layers"):
        train(eagle_run(place, tmp_path / "other", init_from=run.out, layers="0,2,3"))
