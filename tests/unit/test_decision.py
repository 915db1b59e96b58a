"""The decision model: chances from states, and files that fit or are refused."""

import pytest
import torch
from safetensors.torch import save_file

from slipstream.core.errors import WeightsError
from slipstream.models.decision import DecisionModel, load_decision, save_decision


def model():
    torch.manual_seed(0)
    return DecisionModel((6, 4, 3))


def test_scores_are_the_chances_of_the_network_written_out():
    decision, states = model(), torch.randn(5, 6)
    weights = decision.state_dict()
    x = states
    for index in range(2):
        x = torch.relu(x @ weights[f"layers.{index}.weight"].T + weights[f"layers.{index}.bias"])
    logits = (x @ weights["layers.2.weight"].T + weights["layers.2.bias"])[:, 0]
    torch.testing.assert_close(decision.score(states), 1 / (1 + torch.exp(-logits)))


def test_bfloat16_states_give_float32_chances():
    scores = model().score(torch.randn(3, 6, dtype=torch.bfloat16))
    assert scores.dtype == torch.float32 and scores.shape == (3,)


def test_saved_and_loaded_it_scores_the_same(tmp_path):
    decision, states = model(), torch.randn(4, 6)
    save_decision(decision, tmp_path / "d.safetensors")
    loaded = load_decision(tmp_path / "d.safetensors", hidden_size=6)
    assert torch.equal(loaded.score(states), decision.score(states))


def test_weights_for_a_draft_of_another_width_are_refused(tmp_path):
    save_decision(model(), tmp_path / "d.safetensors")
    with pytest.raises(WeightsError, match=r"width 6, the draft's are 8"):
        load_decision(tmp_path / "d.safetensors", hidden_size=8)


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": torch.zeros(1)},
        {"0.weight": torch.zeros(1, 6), "0.bias": torch.zeros(1)},
        {
            "0.weight": torch.zeros(4, 6),
            "0.bias": torch.zeros(4),
            "1.weight": torch.zeros(1, 5),
            "1.bias": torch.zeros(1),
        },
    ],
)
def test_a_file_that_is_no_decision_model_is_refused(tmp_path, tensors):
    save_file(tensors, tmp_path / "d.safetensors")
    with pytest.raises(WeightsError):
        load_decision(tmp_path / "d.safetensors", hidden_size=6)


def test_a_network_without_a_hidden_layer_is_refused():
    with pytest.raises(WeightsError, match="hidden width"):
        DecisionModel((6,))
