"""A decision model learns what its records say, is never worse than confidence, and is judged."""

from dataclasses import replace

import pytest
import torch

from slipstream.core.errors import TrainingError
from slipstream.models.decision import GREEDY, SAMPLED
from slipstream.train.decision import DecisionSettings, train_decision
from slipstream.train.decision_report import auc, figures, gain, isotonic, losses, reliability
from slipstream.train.records import Records, RecordStore, joined, no_records

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
    assert auc(ours, made.accepted) > auc(best, made.accepted) - 0.01
    assert auc(ours, made.accepted) > auc(made.confidence, made.accepted) + 0.03


def test_on_the_validation_records_it_is_never_worse_than_confidence():
    made, held = records(0, 40), records(1, 300)
    # What there is to learn is the opposite of what is judged: the draft taken at its word.
    wrong = replace(made, accepted=~made.accepted)
    honest = torch.rand(300, generator=torch.Generator().manual_seed(0)) < held.confidence
    held = replace(held, accepted=honest)
    model = train_decision(wrong, held, replace(SETTINGS, lr=1.0, max_epochs=2))
    own = losses(chances(model, held), honest).mean()
    assert own <= losses(held.confidence, honest).mean() + 1e-6


def test_the_same_seed_gives_the_same_model():
    first, second = (train_decision(records(0, 200), records(1, 50), SETTINGS) for _ in range(2))
    made = records(2, 5)
    assert torch.equal(chances(first, made), chances(second, made))


@pytest.mark.parametrize(
    "change", [{"lr": 0.0}, {"weight_decay": -1.0}, {"max_epochs": 0}, {"patience": 0}]
)
def test_settings_that_train_nothing_are_refused(change):
    with pytest.raises(TrainingError, match=next(iter(change))):
        DecisionSettings(**change)


def test_figures_are_those_counted_by_hand():
    said = torch.tensor([0.95, 0.75, 0.25, 0.25])
    true = torch.tensor([True, False, True, False])
    got = figures(said, true)
    assert got.brier == pytest.approx((0.05**2 + 2 * 0.75**2 + 0.25**2) / 4)
    assert got.auc == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    # Bins: 0.95 (1 of 1 came true), 0.75 (0 of 1), 0.25 (1 of 2).
    assert got.ece == pytest.approx((0.05 + 0.75 + 2 * 0.25) / 4)
    expected = -torch.tensor([0.95, 0.25, 0.25, 0.75]).log().mean()
    assert got.nll == pytest.approx(float(expected))
    assert [share for _, _, share in reliability(said, true)] == [0.5, 0.25, 0.25]


def test_where_all_came_true_nothing_can_be_ranked():
    assert figures(torch.tensor([1.0, 0.0]), torch.tensor([True, True])).auc is None


def test_isotonic_is_rising_and_pools_what_violates():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4])
    fitted = isotonic(scores, torch.tensor([False, True, False, True]))
    values = fitted(torch.tensor([0.0, 0.1, 0.2, 0.35, 0.4, 1.0]))
    # Levels 0, 1/2 and 1, each with half a success in one more token.
    assert values.tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.75, 0.75])


def test_a_gain_is_measured_against_what_prompts_differ_by():
    accepted, prompt = torch.ones(4, dtype=torch.bool), torch.tensor([5, 5, 9, 9])
    ours, theirs = torch.full((4,), 0.5), torch.full((4,), 0.25)
    clear = gain(ours, theirs, accepted, prompt)
    assert clear.nats == pytest.approx(0.6931, abs=1e-4)
    assert clear.error == pytest.approx(0) and clear.is_better
    # A good prompt and one as bad: the same mean as no gain at all.
    mixed = gain(torch.tensor([0.5, 0.5, 0.25, 0.25]), ours.flip(0) * 0.7071, accepted, prompt)
    assert not mixed.is_better and mixed.error > 0.2


def test_records_come_back_from_disk_as_they_were(tmp_path):
    store, made = RecordStore(tmp_path, {"draft": "a"}), records(0, 30)
    assert store.get(3) is None
    store.put(3, made)
    store.put(4, no_records(5))
    back = RecordStore(tmp_path, {"draft": "a"})
    assert torch.equal(back.get(3).hidden, made.hidden)
    assert torch.equal(joined([back.get(3), back.get(4)]).stats, made.stats)


def test_records_of_another_draft_are_not_mixed_in(tmp_path):
    RecordStore(tmp_path, {"draft": "a"})
    with pytest.raises(TrainingError, match="another draft"):
        RecordStore(tmp_path, {"draft": "b"})


def test_columns_of_different_lengths_are_no_records():
    with pytest.raises(TrainingError, match="accepted"):
        replace(records(0, 4), accepted=torch.ones(3, dtype=torch.bool))
