"""What the draft may see in training, and its loss against the formula written out."""

import pytest
import torch
import torch.nn.functional as F

from slipstream.core.errors import SlipstreamError
from slipstream.models.glide.glide import Rope
from slipstream.train.config import GlideLoss, TrainSchedule, TrainSettings
from slipstream.train.features import TrainBatch
from slipstream.train.glide import (
    Frozen,
    GlideMethod,
    Goal,
    LossSum,
    TrimmedLoss,
    block_mask,
    blocks_of,
    greedy_matches,
    lag_mask,
    position_weights,
)
from slipstream.train.heldout import HeldoutCounts


def blocks(lengths, offsets):
    return torch.tensor(lengths), torch.tensor(offsets)


def seen(mask):
    return [[k for k, value in enumerate(row) if value == 0] for row in mask[0, 0].tolist()]


def test_a_query_reads_earlier_blocks_of_its_own_document_only():
    mask = block_mask(7, blocks([3], [1]))
    # Blocks: 0 1 | 2 3 4 | 5 6; the first block falls back to the positions before its own.
    assert seen(mask) == [[0], [0], [0, 1], [0, 1], [0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    mask = block_mask(6, blocks([2, 3], [0, 2]))
    assert (seen(mask[:1])[4], seen(mask[1:])[3]) == ([0, 1, 2, 3], [0])


@pytest.mark.parametrize("lag", range(4))
def test_a_lag_hides_the_newest_keys(lag):
    rows = seen(lag_mask(8, lag))
    for query in range(lag + 1, 8):
        assert rows[query] == list(range(query - lag))


def batch(lengths=(4, 6), num_prompts=(2, 5)):
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    return TrainBatch(
        ids, (), torch.zeros(0), ids, torch.tensor(lengths), torch.tensor(num_prompts)
    )


def test_no_query_ever_reads_its_own_or_a_later_position():
    for seed in range(20):
        noise = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed))
        allowed = block_mask(6, blocks_of(noise, GlideLoss()))[:, 0] == 0
        assert allowed.any(-1).all()
        late = torch.triu(torch.ones(6, 6, dtype=torch.bool))
        late[0, 0] = False
        assert not (allowed & late).any()


def test_the_prediction_of_the_first_generated_token_counts_in_full():
    weights = position_weights(batch(), 0.5)
    assert weights.tolist() == [[0.5, 1, 1, 1, 0, 0], [0.5, 0.5, 0.5, 0.5, 1, 1]]


@pytest.mark.parametrize(("kl", "accepted"), [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_the_blockwise_loss_and_its_gradients_are_those_of_the_formula(kl, accepted):
    generator = torch.Generator().manual_seed(0)
    drafts, target = (torch.randn(*size, 8, generator=generator) for size in ((2, 600), (600,)))
    head, own = (torch.randn(20, 8, generator=generator) for _ in range(2))
    weights = torch.rand(2, 600, generator=generator)
    trained = [drafts.requires_grad_(), own.requires_grad_()]
    logs = F.log_softmax(drafts @ own.T, -1)
    distribution = F.softmax(target @ head.T, -1)
    chance = torch.minimum(distribution, logs.exp()).sum(-1)
    expected = ((kl * -(distribution * logs).sum(-1) - accepted * chance.log()) * weights).sum()
    wanted = torch.autograd.grad(expected, trained)
    settings = GlideLoss(kl_weight=kl, acceptance_weight=accepted)
    found = TrimmedLoss.apply(drafts, own, Goal(target, head, weights), settings)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, trained), wanted, rtol=1e-4, atol=1e-4)


class Echo(torch.nn.Module):
    """A draft whose state is its embedding."""

    def forward(self, x, kvs, rope, mask):
        return x


def test_every_position_of_the_text_weighs_the_loss():
    # Token i points at column i: after `ids` the draft says the same token again.
    frozen = Frozen(
        torch.eye(6), torch.eye(6), torch.arange(6), Rope(torch.ones(6, 2), torch.ones(6, 2))
    )
    ids = torch.tensor([[1, 2, 3, 4, 5, 1]])
    argmax = torch.tensor([[1, 0, 3, 4, 0, 1]])
    data = TrainBatch(ids, (), torch.eye(6)[argmax], argmax, torch.tensor([6]), torch.tensor([1]))
    settings = GlideLoss(hidden_weight=0.0)
    goal = Goal(torch.eye(6)[argmax[0]], frozen.head, torch.ones(1, 6))
    value = TrimmedLoss.apply(torch.eye(6)[ids], frozen.head, goal, settings)
    found = GlideMethod(Echo(), frozen, settings).loss(Echo(), data, torch.zeros(1, 2))
    torch.testing.assert_close(found, LossSum(value, torch.tensor(6.0)))


def test_a_chain_is_one_query_a_lag_longer_each_step():
    matches = torch.zeros(6, 1, 8, dtype=torch.bool)
    generated = torch.tensor([[False, True, True, True, True, True, True, False]])
    # Chains of five begin at 1 and 2. That of 1 is right at its first three depths.
    for depth in range(3):
        matches[depth, 0, 1 + depth] = True
    matches[0, 0, 3] = True  # of no whole chain
    tally = HeldoutCounts(6)
    tally.add(matches, generated)
    result = tally.result()
    assert result.survival == (0.5, 0.5, 0.5, 0.0, 0.0)
    assert result.length == 2.5
    torch.testing.assert_close(result.acceptance, tuple(n / 6 for n in (2, 1, 1, 0, 0, 0)))


def test_a_match_compares_target_ids_not_columns():
    head = torch.eye(3)
    frozen = Frozen(head, head, torch.tensor([4, 7, 9]), Rope(head, head))
    matches = greedy_matches(torch.eye(3), torch.tensor([4, 1, 9]), frozen)
    assert matches.tolist() == [True, False, True]
    assert frozen.columns(torch.tensor([[9, 0], [4, 60]])).tolist() == [[2, -1], [0, -1]]


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        (GlideLoss, {"prompt_weight": 1.5}, "prompt_weight is 1.5"),
        (GlideLoss, {"kl_weight": float("nan")}, "kl_weight is nan"),
        (GlideLoss, {"acceptance_weight": -1.0}, "acceptance_weight is -1.0"),
        (GlideLoss, {"kl_weight": 0.0, "hidden_weight": 0.0}, "nothing to learn"),
        (TrainSchedule, {}, "either a number of steps"),
        (TrainSchedule, {"steps": 5, "minutes": 1.0}, "not both or neither"),
        (TrainSchedule, {"steps": 0}, "steps is 0"),
        (TrainSettings, {"schedule": TrainSchedule(steps=1), "batch_tokens": 0}, "batch_tokens"),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind, values, reason):
    with pytest.raises(SlipstreamError, match=reason):
        kind(**values)
