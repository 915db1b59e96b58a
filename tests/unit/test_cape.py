"""CaPE spends its leaves where the draft is unsure, and never more than fit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.cape import PAPER_TABLE, Budget, cape_leaves, cape_tree, runner_ups
from slipstream.core.tree import ROOT

CHAINS = st.integers(0, 6).flatmap(
    lambda depth: st.tuples(
        st.just([1000 + position for position in range(depth)]),
        st.lists(st.floats(0, 1), min_size=depth, max_size=depth),
        st.lists(st.integers(0, 9), min_size=depth, max_size=depth),
    )
)


def candidates_of(counts):
    return [
        [100 * position + rank for rank in range(count)] for position, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("top_prob", "count"),
    [(0.0, 7), (0.29, 7), (0.3, 5), (0.59, 5), (0.6, 3), (0.79, 3), (0.8, 1), (1.0, 1), (1.001, 1)],
)
def test_runner_ups_follow_the_papers_table_left_closed(top_prob, count):
    assert runner_ups(top_prob) == count


def test_no_number_counts_as_certainty():
    assert runner_ups(math.nan) == 1


@given(CHAINS, st.integers(0, 60))
def test_the_tree_is_the_chain_and_leaves_beside_it_within_the_budget(drafted, spare):
    chain, top_probs, counts = drafted
    candidates = candidates_of(counts)
    budget = Budget(len(chain) + spare)
    tree = cape_tree(chain, candidates, top_probs=top_probs, budget=budget)
    assert tree.tokens[: len(chain)] == tuple(chain)
    assert tree.parents[: len(chain)] == tuple(range(-1, len(chain) - 1))
    assert len(tree) <= budget.max_nodes
    for node in range(len(chain), len(tree)):
        position = tree.parents[node] + 1
        assert tree.tokens[node] in candidates[position]
        assert list(tree.children(node)) == []


@given(CHAINS)
def test_with_room_for_all_each_position_has_what_the_table_says(drafted):
    chain, top_probs, counts = drafted
    leaves = cape_leaves(chain, candidates_of(counts), top_probs=top_probs, budget=Budget(127))
    for position, (top_prob, available) in enumerate(zip(top_probs, counts, strict=True)):
        mine = [leaf.rank for leaf in leaves if leaf.position == position]
        assert mine == list(range(min(runner_ups(top_prob), available)))


@given(CHAINS, st.integers(0, 20))
def test_each_position_keeps_its_first_candidates(drafted, spare):
    chain, top_probs, counts = drafted
    budget = Budget(len(chain) + spare)
    leaves = cape_leaves(chain, candidates_of(counts), top_probs=top_probs, budget=budget)
    assert [leaf.node for leaf in leaves] == list(range(len(chain), len(chain) + len(leaves)))
    for position in range(len(chain)):
        mine = [leaf.rank for leaf in leaves if leaf.position == position]
        assert mine == list(range(len(mine)))


def test_the_leaves_most_likely_reached_and_right_are_kept_first():
    # Reached with certainty .9 and then .81: a leaf of .08 at the start loses to one of .3 below.
    leaves = cape_leaves(
        [1, 2, 3],
        [[10], [20], [30, 31]],
        top_probs=[0.9, 0.9, 0.4],
        probs=[[0.08], [0.05], [0.3, 0.2]],
        budget=Budget(5),
    )
    assert [(leaf.position, leaf.rank) for leaf in leaves] == [(2, 0), (2, 1)]


def test_a_leaf_that_is_hardly_ever_reached_loses_to_a_less_likely_one_above_it():
    leaves = cape_leaves(
        [1, 2, 3],
        [[10], [], [30]],
        top_probs=[0.4, 0.4, 0.4],
        probs=[[0.1], [], [0.3]],
        budget=Budget(4),
    )
    assert [(leaf.position, leaf.rank) for leaf in leaves] == [(0, 0)]


def test_a_likelier_second_candidate_does_not_push_out_the_first():
    leaves = cape_leaves([1], [[10, 11]], top_probs=[0.1], probs=[[0.1, 0.8]], budget=Budget(2))
    assert [(leaf.position, leaf.rank) for leaf in leaves] == [(0, 0)]


def test_leaves_hang_beside_the_chains_token_not_below_it():
    tree = cape_tree([1, 2], [[10], [20]], top_probs=[0.9, 0.9], budget=Budget(9))
    assert (tree.tokens, tree.parents) == ((1, 2, 10, 20), (ROOT, 0, ROOT, 0))


def test_a_chain_longer_than_the_budget_and_lists_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="3 tokens, but 2 nodes fit"):
        cape_tree([1, 2, 3], [[], [], []], top_probs=[1, 1, 1], budget=Budget(2))
    with pytest.raises(ValueError, match="1 candidate lists"):
        cape_tree([1, 2], [[]], top_probs=[1, 1], budget=Budget(2))
    with pytest.raises(ValueError, match="counts of 0 or more"):
        Budget(5, (1, -1))


def test_the_papers_table_caps_a_round_of_four_at_thirty_two_candidates():
    assert 4 * (1 + max(PAPER_TABLE)) == 32
