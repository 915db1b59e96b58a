"""What the draft may see in training, and its loss against the formula written out."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from slipstream.core.errors import TrainingError
from slipstream.models.glide import Rope
from slipstream.train.config import LossSettings, Schedule
from slipstream.train.features import Batch
from slipstream.train.glide import (
    Frozen,
    TrimmedKl,
    accepted_per_round,
    block_mask,
    draw_masks,
    greedy_matches,
    lag_mask,
    position_weights,
)
from slipstream.train.trainer import learning_rate


def seen(mask):
    return [[k for k, value in enumerate(row) if value == 0] for row in mask[0, 0].tolist()]


def test_a_query_reads_earlier_blocks_only():
    mask = block_mask(7, torch.tensor([3]), torch.tensor([1]))
    # Blocks: 0 1 | 2 3 4 | 5 6; the first block falls back to the positions before its own.
    assert seen(mask) == [[0], [0], [0, 1], [0, 1], [0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_documents_of_a_batch_have_grids_of_their_own():
    mask = block_mask(6, torch.tensor([2, 3]), torch.tensor([0, 2]))
    assert seen(mask[:1])[4] == [0, 1, 2, 3]
    assert seen(mask[1:])[3] == [0]


@pytest.mark.parametrize("lag", range(4))
def test_a_lag_hides_the_newest_keys(lag):
    rows = seen(lag_mask(8, lag))
    for query in range(lag + 1, 8):
        assert rows[query] == list(range(query - lag))


def batch(lengths=(4, 6), num_prompts=(2, 5)):
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    return Batch(ids, (), torch.zeros(0), ids, torch.tensor(lengths), torch.tensor(num_prompts))


def test_no_query_ever_reads_its_own_or_a_later_position():
    for seed in range(20):
        masks = draw_masks(batch(), LossSettings(), torch.Generator().manual_seed(seed))
        allowed = masks[:, 0] == 0
        assert allowed.any(-1).all()
        late = torch.triu(torch.ones(6, 6, dtype=torch.bool))
        late[0, 0] = False
        assert not (allowed & late).any()


def test_lags_stay_within_the_longest_block():
    settings = LossSettings(block_min=2, block_max=3)
    long = batch(lengths=(40,) * 16, num_prompts=(1,) * 16)
    allowed = draw_masks(long, settings, torch.Generator().manual_seed(1))[:, 0] == 0
    lags = (torch.arange(40) - allowed.sum(-1))[:, 3:]
    assert set(lags.flatten().tolist()) == {0, 1, 2}


def test_the_prediction_of_the_first_generated_token_counts_in_full():
    weights = position_weights(batch(), 0.5)
    assert weights.tolist() == [[0.5, 1, 1, 1, 0, 0], [0.5, 0.5, 0.5, 0.5, 1, 1]]


def kl_case(rows=600):
    generator = torch.Generator().manual_seed(0)
    draft = torch.randn(rows, 8, generator=generator, requires_grad=True)
    target, head = (
        torch.randn(rows, 8, generator=generator),
        torch.randn(20, 8, generator=generator),
    )
    return draft, target, head, torch.rand(rows, generator=generator)


def test_the_blockwise_loss_and_its_gradient_are_those_of_the_formula():
    draft, target, head, weights = kl_case()
    law = F.softmax(target @ head.T, -1)
    expected = -(law * F.log_softmax(draft @ head.T, -1)).sum(-1) @ weights
    (wanted,) = torch.autograd.grad(expected, draft)
    loss = TrimmedKl.apply(draft, target, head, weights)
    (gradient,) = torch.autograd.grad(3 * loss, draft)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, 3 * wanted, rtol=1e-4, atol=1e-5)


def test_rows_without_weight_have_no_gradient():
    draft, target, head, weights = kl_case()
    weights[5] = 0
    (gradient,) = torch.autograd.grad(TrimmedKl.apply(draft, target, head, weights), draft)
    assert not gradient[5].any() and gradient[6].any()


def test_a_match_compares_target_ids_not_columns():
    head = torch.eye(3)
    frozen = Frozen(head, head, torch.tensor([4, 7, 9]), Rope(head, head))
    matches = greedy_matches(torch.eye(3), torch.tensor([4, 1, 9]), frozen)
    assert matches.tolist() == [True, False, True]


def test_accepted_tokens_are_the_sum_of_the_chances_to_get_that_far():
    assert accepted_per_round([0.5, 0.5, 0.5], 2) == 0.75


def test_the_learning_rate_rises_then_falls_to_its_floor():
    schedule = Schedule(steps=100, lr=1.0, warmup=0.1, floor=0.02)
    rates = [learning_rate(schedule, done / 100) for done in range(101)]
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 10
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.02)


@pytest.mark.parametrize(
    "changes", [{"steps": 5, "minutes": 1.0}, {}, {"steps": 0}, {"steps": 1, "lr": 0.0}]
)
def test_a_schedule_without_one_positive_length_is_refused(changes):
    with pytest.raises(TrainingError):
        Schedule(**changes)


def test_a_block_range_upside_down_is_refused():
    with pytest.raises(TrainingError, match="min <= max"):
        replace(LossSettings(), block_min=5, block_max=4)
