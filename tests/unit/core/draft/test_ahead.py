"""What a verdict leaves of a tree that went on growing is a proposal for what came of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.draft.ahead import AheadTree, AheadTrees, expected_tokens
from slipstream.core.draft.dynamic import CandidateTree
from slipstream.core.errors import InvalidRequest
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal
from support.models.toy import path_tokens

PLAN = Plan(max_depth=8, max_nodes=20)


def grown(tokens, parents, probs):
    tree = TokenTree(tuple(tokens), tuple(parents))
    return AheadTree(tree, stats(*probs))


def proposal_of(tree):
    """All of a tree as a proposal, whatever its nodes cost."""
    return tree.below((), Plan(max_depth=99, max_nodes=99))


@st.composite
def trees(draw):
    """Trees of up to 24 nodes, whose siblings differ."""
    size = draw(st.integers(1, 24))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(size)]
    tokens = [parents[:node].count(parent) for node, parent in enumerate(parents)]
    probs = draw(st.lists(st.floats(0, 1), min_size=size, max_size=size))
    return grown(tokens, parents, probs)


def path_probs(tree):
    probs = []
    for parent, node in zip(tree.tree.parents, tree.stats, strict=True):
        probs.append(node.prob * (1.0 if parent == ROOT else probs[parent]))
    return probs


@given(trees(), st.data())
def test_the_rest_below_a_path_is_the_tree_below_it(tree, data):
    node = data.draw(st.integers(ROOT, len(tree.tree) - 1))
    path = path_tokens(tree.tree, node)
    rest = tree.below(path, PLAN)
    below = {
        path_tokens(tree.tree, other)[len(path) :]
        for other in range(len(tree.tree))
        if node in (ROOT, *tree.tree.path(other)[:-1])
        and len(tree.tree.path(other)) - len(path) <= PLAN.max_depth
    }
    if not below:
        assert rest is None
        return
    assert len(below) <= PLAN.max_nodes or len(rest.tree) == PLAN.max_nodes
    assert {path_tokens(rest.tree, other) for other in range(len(rest.tree))} <= below


@given(trees(), st.integers(1, 6), st.integers(1, 4))
def test_a_rest_keeps_to_the_plan_and_has_the_likeliest_nodes(tree, max_nodes, max_depth):
    rest = tree.below((), Plan(max_depth=max_depth, max_nodes=max_nodes))
    assert len(rest.tree) <= max_nodes
    assert max(rest.tree.depths(), default=0) <= max_depth
    nodes = zip(path_probs(tree), tree.tree.depths(), strict=True)
    fitting = sorted((prob for prob, depth in nodes if depth <= max_depth), reverse=True)
    assert sorted(path_probs(rest), reverse=True) == fitting[: len(rest.tree)]


def test_nodes_that_cost_more_than_they_bring_are_left_out():
    tree = grown([4, 5, 6], [-1, 0, 1], [0.9, 0.5, 0.1])
    plan = Plan(max_depth=8, max_nodes=8, row_prices=(0.2, 0.2, 0.2))
    assert tree.below((), plan).tree == TokenTree.chain([4, 5])


def test_the_likeliest_nodes_of_all_levels_are_scored_first():
    tree = CandidateTree()
    tree.add(ROOT, [1, 2], stats(0.6, 0.3), [0.6, 0.3])
    assert tree.next(1, max_depth=4, ends=()) == [0]
    tree.add(0, [1, 2], stats(0.4, 0.2), [0.4, 0.2])
    assert [tree.token(node) for node in tree.next(2, max_depth=4, ends=())] == [2, 1]
    assert tree.next(9, max_depth=2, ends=()) == [1]
    assert tree.next(9, max_depth=4, ends={2}) == [2]


def stats(*probs):
    return [NodeStats(prob, prob, 0.0) for prob in probs]


def test_an_older_tree_serves_where_the_newer_one_has_not_come():
    trees = AheadTrees()
    trees.hold(3, grown([4, 5, 6, 7], [-1, 0, 1, 2], [0.9] * 4))
    assert trees.rest([1, 2, 3, 4], PLAN).tree == TokenTree.chain([5, 6, 7])
    assert trees.rest([1, 2, 3, 4, 5, 6], PLAN).tree == TokenTree.chain([7])


def test_of_two_trees_the_likelier_rest_is_taken():
    trees = AheadTrees()
    trees.hold(3, grown([4, 5], [-1, 0], [0.9, 0.1]))
    trees.hold(4, grown([8], [-1], [0.7]))
    assert trees.rest([1, 2, 3, 4], PLAN).tree == TokenTree.chain([8])


@pytest.mark.parametrize("prob", [-0.1, 1.5, float("nan"), float("inf")])
def test_a_tree_without_usable_probabilities_is_refused(prob):
    with pytest.raises(InvalidRequest, match="not one from 0 to 1 for each node"):
        grown([4, 5], [-1, 0], [0.5, prob])
    with pytest.raises(InvalidRequest, match="a tree of 2 nodes has 0 probabilities"):
        AheadTree(TokenTree.chain([4, 5]), ())


def test_no_more_trees_are_held_than_a_few():
    trees = AheadTrees()
    for start in range(20):
        trees.hold(start, grown([7] * 30, range(-1, 29), [0.9] * 30))
    held = [start for start in range(20) if trees.rest([7] * 20, PLAN) and start]
    assert held
    assert len(trees) <= AheadTrees.MOST


def test_expected_tokens_are_the_probabilities_of_all_paths():
    assert expected_tokens(proposal_of(grown([4, 5, 6], [-1, 0, -1], [0.5, 0.5, 0.25]))) == 1.0
    assert expected_tokens(proposal_of(grown([4, 5], [-1, 0], [1.0, 1.0]))) == 2
    assert expected_tokens(Proposal(TokenTree.chain([4]))) == 0
