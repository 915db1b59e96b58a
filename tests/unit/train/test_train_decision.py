"""A decision model learns what its records say, is never worse than confidence, and is judged."""

from dataclasses import replace

import pytest
import torch

from slipstream.core.errors import InvalidRequest
from slipstream.models.decision import GREEDY, SAMPLED
from slipstream.train.decision import DecisionSettings, train_decision
from slipstream.train.decision_run import log_losses
from slipstream.train.rounds import Records

SETTINGS = DecisionSettings(width=8, lr=1e-2, weight_decay=0.0, batch_rows=64, max_epochs=30)


def oracle(hidden, stats, effect):
    """The chance that records are drawn with; `effect` is what the state has to say."""
    return torch.sigmoid(0.5 * stats[:, 0] + effect * (hidden[:, 0].float() / 50 - 0.6))


def records(seed, count=1500):
    """Slots whose acceptance depends on confidence, on the state, and on how one decodes."""
    noise = torch.Generator().manual_seed(seed)
    # Far from zero mean and unit scale, as a draft's states are.
    hidden = (30 + 50 * torch.randn(count, 5, generator=noise)).bfloat16()
    top = 0.05 + 0.9 * torch.rand(count, generator=noise)
    lag = torch.randint(8, (count,), generator=noise)
    stats = torch.stack([top.logit(), -top.log(), torch.full((count,), 3.0), lag.float()], 1)
    cold, warm = oracle(hidden, stats, 2.0), oracle(hidden, stats, -1.0)
    greedy, drawn = torch.rand(2, count, generator=noise)
    is_greedy = greedy < 0.5
    accepted = drawn < torch.where(is_greedy, cold, warm)
    return Records(hidden, stats, accepted, is_greedy, torch.arange(count) // 20)


def chances(model, made):
    both = torch.from_numpy(model.score(made.hidden.float().numpy(), made.stats.numpy()))
    return torch.where(made.is_greedy, both[:, GREEDY], both[:, SAMPLED])


def test_it_comes_close_to_the_law_that_the_records_were_drawn_from():
    model, made = train_decision(records(0), records(1, 500), SETTINGS), records(2)
    effect = torch.where(made.is_greedy, 2.0, -1.0)
    ours, best = chances(model, made), oracle(made.hidden, made.stats, effect)
    assert (ours - best).abs().mean() < 0.05
    own, known = (log_losses(at, made.accepted).mean() for at in (ours, made.confidence))
    assert own < log_losses(best, made.accepted).mean() + 0.01
    assert own < known - 0.03


def test_on_the_validation_records_it_is_never_worse_than_confidence():
    made, held = records(0, 40), records(1, 300)
    # What there is to learn is the opposite of what is judged: the draft taken at its word.
    wrong = replace(made, accepted=~made.accepted)
    honest = torch.rand(300, generator=torch.Generator().manual_seed(0)) < held.confidence
    held = replace(held, accepted=honest)
    model = train_decision(wrong, held, replace(SETTINGS, lr=1.0, max_epochs=2))
    own = log_losses(chances(model, held), honest).mean()
    assert own <= log_losses(held.confidence, honest).mean() + 1e-6


def test_the_same_seed_gives_the_same_model():
    first, second = (train_decision(records(0, 200), records(1, 50), SETTINGS) for _ in range(2))
    made = records(2, 5)
    assert torch.equal(chances(first, made), chances(second, made))


@pytest.mark.parametrize("change", [{"lr": 0.0}, {"max_epochs": 0}, {"width": 0}])
def test_settings_that_train_nothing_are_refused(change):
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        DecisionSettings(**change)
