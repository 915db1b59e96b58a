"""EAGLE-2's tree keeps the most likely paths, and with every node its ancestors."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.draft.dynamic import DynamicTree
from slipstream.core.tree import ROOT

WIDTH = 3


def grown(seed, levels=4):
    """A tree grown as a draft grows it, and every candidate's path score by its creation index."""
    rng, tree, scores = random.Random(seed), DynamicTree(), {ROOT: 0.0}
    frontier = (ROOT,)
    for _ in range(levels):
        for node in frontier:
            # Few values: ties are common.
            log_probs = [math.log(rng.choice((0.1, 0.25, 0.5))) for _ in range(WIDTH)]
            for log_prob in log_probs:
                scores[len(scores) - 1] = scores[node] + log_prob
            tree.grow(node, [rng.randrange(50) for _ in range(WIDTH)], log_probs)
        frontier = tree.frontier(WIDTH)
    del scores[ROOT]
    return tree, scores


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_the_best_nodes_of_all_levels_are_kept_and_their_parents_with_them(seed, max_nodes):
    tree, scores = grown(seed)
    kept_tree, kept = tree.rerank(max_nodes)
    best = sorted(scores, key=lambda node: (-scores[node], node))[:max_nodes]
    assert list(kept) == sorted(best)
    assert len(kept_tree) == len(kept)
    for index, node in enumerate(kept):
        above = kept_tree.parents[index]
        assert kept_tree.tokens[index] == tree.token(node)
        assert (ROOT if above == ROOT else kept[above]) == tree.parent(node)
        assert tree.score(node) == pytest.approx(scores[node])


def test_the_frontier_is_the_best_of_the_newest_level_only():
    tree = DynamicTree()
    tree.grow(ROOT, [1, 2], [math.log(0.9), math.log(0.1)])
    assert tree.frontier(2) == (0, 1)
    tree.grow(0, [3, 4], [math.log(0.6), math.log(0.4)])
    tree.grow(1, [5, 6], [math.log(0.9), math.log(0.1)])
    assert tree.frontier(2) == (2, 3)
