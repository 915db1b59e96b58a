"""A decision model learns what its examples say, and keeps its best epoch."""

import math
from dataclasses import replace

import pytest
import torch

from slipstream.core.errors import TrainingError
from slipstream.train.decision import DecisionSettings, Examples, train_decision

SETTINGS = DecisionSettings(widths=(8,), lr=3e-2, batch_rows=64, epochs=15)


def examples(seed, count=600):
    states = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    # Far from zero mean and unit scale, as a draft's states are.
    return Examples(30 + 50 * states, (states[:, 0] > 0).float(), torch.full((count,), 0.5))


def test_it_learns_which_states_are_accepted():
    model, fit = train_decision(examples(0), examples(1), SETTINGS)
    states = examples(2)
    right = (model.score(states.states) > 0.5) == (states.labels > 0.5)
    assert right.float().mean() > 0.95
    assert fit.loss < fit.constant_loss / 2
    assert fit.confidence_loss == pytest.approx(math.log(2))


def test_more_epochs_never_give_a_worse_validation_loss():
    noise = Examples(torch.randn(64, 4), (torch.rand(64) > 0.5).float(), torch.rand(64))
    one, many = (
        train_decision(noise, examples(1), replace(SETTINGS, epochs=epochs))[1].loss
        for epochs in (1, 8)
    )
    assert many <= one


def test_the_same_seed_gives_the_same_model():
    first, second = (train_decision(examples(0), examples(1), SETTINGS)[0] for _ in range(2))
    states = torch.randn(5, 4)
    assert torch.equal(first.score(states), second.score(states))


def test_settings_that_train_nothing_are_refused():
    with pytest.raises(TrainingError):
        DecisionSettings(epochs=0)
