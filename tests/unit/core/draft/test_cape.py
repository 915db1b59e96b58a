"""CaPE spends its leaves where the draft is unsure, and never more than fit."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.draft.cape import Chain, cape_tree, runner_ups
from slipstream.core.draft.dynamic import CandidateTree
from slipstream.core.tree import ROOT
from slipstream.core.types import NodeStats

NAN = math.nan
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
    [(0.0, 7), (0.29, 7), (0.3, 5), (0.59, 5), (0.6, 3), (0.79, 3), (0.8, 1), (1.001, 1), (NAN, 1)],
)
def test_runner_ups_follow_the_papers_table_left_closed(top_prob, count):
    assert runner_ups(top_prob) == count


def drawn(drafted):
    """A chain whose candidates are draws: none is preferred for the token that it is."""
    chain, top_probs, counts = drafted
    return Chain(chain, candidates_of(counts), top_probs)


def leaves_of(tree, chain):
    """Position and rank of the tree's leaves beside the chain, in its order."""
    leaves = [node for node, token in enumerate(tree.tokens) if token not in chain.tokens]
    places = [(tree.parents[node] + 1, tree.tokens[node]) for node in leaves]
    return [(position, chain.runner_ups[position].index(token)) for position, token in places]


@given(CHAINS, st.integers(0, 60))
def test_the_tree_is_the_chain_and_leaves_beside_it_within_the_budget(drafted, spare):
    chain = drawn(drafted)
    depth = len(chain.tokens)
    budget = depth + spare
    tree = cape_tree(chain, budget)
    assert tree.tokens[:depth] == tuple(chain.tokens)
    assert tree.parents[:depth] == tuple(range(-1, depth - 1))
    assert len(tree) <= budget
    for node in range(depth, len(tree)):
        position = tree.parents[node] + 1
        assert tree.tokens[node] in chain.runner_ups[position]
        assert list(tree.children(node)) == []
    leaves = leaves_of(tree, chain)
    for position in range(depth):  # each position keeps its first candidates
        mine = [rank for at, rank in leaves if at == position]
        assert mine == list(range(len(mine)))


@given(CHAINS)
def test_with_room_for_all_each_position_has_what_the_table_says(drafted):
    _, top_probs, counts = drafted
    leaves = leaves_of(cape_tree(drawn(drafted), 127), drawn(drafted))
    for position, (top_prob, available) in enumerate(zip(top_probs, counts, strict=True)):
        mine = [rank for at, rank in leaves if at == position]
        assert mine == list(range(min(runner_ups(top_prob), available)))


def known(tokens, runner_ups, acceptances, probs):
    """A chain whose draft is right about itself."""
    return Chain(tokens, runner_ups, acceptances, acceptances, probs)


def test_the_leaves_most_likely_reached_and_right_are_kept_first():
    # Reached with certainty .9 and then .81: a leaf of .08 at the start loses to one of .3 below.
    chain = known([1, 2, 3], [[10], [20], [30, 31]], [0.9, 0.9, 0.4], [[0.08], [0.05], [0.3, 0.2]])
    assert leaves_of(cape_tree(chain, 5), chain) == [(2, 0), (2, 1)]


def test_the_end_of_a_chain_that_does_not_pay_is_left_out_before_a_likelier_leaf():
    chain = known([1, 2, 3], [[10], [], [30]], [0.4, 0.4, 0.4], [[0.3], [], [0.3]])
    tree = cape_tree(chain, 5, prices=(0.2,) * 5)
    assert (tree.tokens, tree.parents) == ((1, 10), (ROOT, ROOT))


@given(CHAINS, st.lists(st.floats(0, 1), max_size=40), st.integers(0, 40))
def test_a_tree_brings_as_much_more_than_it_costs_as_any_smaller_one(drafted, prices, most):
    tokens, top_probs, counts = drafted
    acceptances = [0.4 + 0.6 * top for top in top_probs]  # else a leaf is likelier than its chain
    probs = [
        [(1 - own) / 2 ** (rank + 1) for rank in range(count)]
        for own, count in zip(acceptances, counts, strict=True)
    ]
    chain = known(tokens, candidates_of(counts), acceptances, probs)

    def surplus(size):
        tree = cape_tree(chain, size)
        return sum(chance(tree, node) for node in range(len(tree))) - sum(prices[: len(tree)])

    def chance(tree, node):
        path, reach = tree.path(node), 1.0
        for depth, at in enumerate(path):
            own = acceptances[depth]
            if tree.tokens[at] == tokens[depth]:
                reach *= own
            else:
                rank = chain.runner_ups[depth].index(tree.tokens[at])
                reach *= (1 - own) * min(probs[depth][rank] / max(1 - own, 1e-6), 1.0)
        return reach

    most += len(tokens)
    tree = cape_tree(chain, most, prices=tuple(prices))
    mine = sum(chance(tree, node) for node in range(len(tree))) - sum(prices[: len(tree)])
    assert mine >= max(surplus(size) for size in range(len(tokens), most + 1)) - 1e-9


def test_nothing_is_proposed_where_nothing_pays():
    chain = known([1, 2], [[10], [20]], [0.3, 0.3], [[0.1], [0.1]])
    assert len(cape_tree(chain, 9, prices=(0.5,) * 9)) == 0


WIDTH = 3


def grown(seed, levels=4):
    """A tree grown level by level, and the probability of every path by its end's index."""
    rng, tree, paths = random.Random(seed), CandidateTree(), {ROOT: 1.0}
    frontier = (ROOT,)
    for depth in range(1, levels + 1):
        for node in frontier:
            # Few values: ties are common.
            probs = [rng.choice((0.125, 0.25, 0.5)) for _ in range(WIDTH)]
            for prob in probs:
                paths[len(paths) - 1] = paths[node] * prob
            stats = [NodeStats(0.5, prob, 0.0) for prob in probs]
            tree.add(node, [rng.randrange(50) for _ in range(WIDTH)], stats, probs)
        frontier = tree.next(WIDTH, depth)
    del paths[ROOT]
    return tree, paths


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_the_best_nodes_of_all_levels_are_kept_and_their_parents_with_them(seed, max_nodes):
    tree, paths = grown(seed)
    proposal = tree.best(max_nodes, "depth")
    kept = sorted(sorted(paths, key=lambda node: (-paths[node], node))[:max_nodes])
    assert proposal.tree.tokens == tuple(map(tree.token, kept))
    above = [ROOT if parent == ROOT else kept[parent] for parent in proposal.tree.parents]
    assert above == [*map(tree.parent, kept)]
    assert [*map(tree.prob, kept)] == [paths[node] for node in kept]
    assert proposal.stopped_by == "depth"


def test_the_frontier_is_the_best_of_the_newest_level_only():
    def add(tree, node, tokens, probs):
        tree.add(node, tokens, [NodeStats(0.5, prob, 0.0) for prob in probs], probs)

    tree = CandidateTree()
    add(tree, ROOT, [1, 2, 9], [0.8, 0.1, 0.1])
    assert tree.next(2, 1) == [0, 1]
    add(tree, 0, [3, 4], [0.6, 0.4])
    add(tree, 1, [5, 6], [0.9, 0.1])
    assert tree.next(2, 2) == [3, 4]
