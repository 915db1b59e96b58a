"""Token trees are stored parents-first, whatever their form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.tree import ROOT, TokenTree
from support.models.toy import trees


@given(trees())
def test_a_path_leads_from_the_root_through_parents(tree):
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[-1] == node
        assert [tree.parents[step] for step in path] == [ROOT, *path[:-1]]
        assert tree.depths()[node] == len(path)


@given(trees())
def test_every_node_is_the_child_of_its_parent_and_of_no_other(tree):
    children = [child for node in range(ROOT, len(tree)) for child in tree.children(node)]
    assert sorted(children) == list(range(len(tree)))
    for node in range(len(tree)):
        assert node in tree.children(tree.parents[node])


@given(st.lists(st.integers(0, 99), max_size=9))
def test_a_chain_is_the_tree_with_a_single_path(tokens):
    chain = TokenTree.chain(tokens)
    assert chain.is_chain()
    assert (chain.tokens, chain.path(len(tokens) - 1)) == (tuple(tokens), tuple(range(len(tokens))))


@pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 1), (-1, 2, 0)])
def test_a_node_before_its_parent_is_refused(parents):
    with pytest.raises(ValueError, match="parents come first"):
        TokenTree(tuple(range(len(parents))), parents)


def test_tokens_and_parents_of_different_number_are_refused():
    with pytest.raises(ValueError, match="2 tokens but 1 parents"):
        TokenTree((1, 2), (-1,))


def test_matching_follows_the_tokens_as_far_as_the_tree_goes():
    tree = TokenTree((5, 6, 7, 8), (-1, -1, 0, 2))
    assert tree.matching([5, 7, 8, 9]) == (0, 2, 3)
    assert tree.matching([6, 7]) == (1,)
    assert tree.matching([7]) == tree.matching([]) == ()
