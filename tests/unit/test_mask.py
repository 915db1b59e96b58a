"""A sliced mask shows each node its ancestors and itself, and is never built twice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.mask import (
    MaskCache,
    SlicedMask,
    ancestor_mask,
    max_cape_topology,
    product_topology,
)
from slipstream.core.tree import ROOT, TokenTree


@st.composite
def topologies(draw):
    """Parents in breadth-first order."""
    parents, level = [], [ROOT]
    for _ in range(draw(st.integers(0, 4))):
        width = draw(st.integers(1, 4))
        start = len(parents)
        parents += sorted(draw(st.sampled_from(level)) for _ in range(width))
        level = list(range(start, len(parents)))
    return tuple(parents)


def tree_of(parents):
    return TokenTree(tuple(range(len(parents))), tuple(parents))


@given(topologies())
def test_a_row_shows_the_path_down_to_its_node(parents):
    mask, tree = ancestor_mask(parents), tree_of(parents)
    for node in range(len(parents)):
        assert set(mask[node].nonzero()[:, 0].tolist()) == set(tree.path(node))


@given(topologies())
def test_every_corner_is_the_mask_of_the_smaller_tree(parents):
    sliced = SlicedMask(parents)
    for count in range(len(parents) + 1):
        assert torch.equal(sliced.upto(count), ancestor_mask(parents[:count]))


@given(topologies())
def test_levels_put_together_are_the_whole_mask(parents):
    sliced, tree = SlicedMask(parents), tree_of(parents)
    assert sliced.num_levels == max(tree.depths(), default=0)
    for depth in range(1, sliced.num_levels + 1):
        start, end = sliced.span(depth)
        assert set(tree.depths()[start:end]) == {depth}
        assert torch.equal(sliced.level(depth), ancestor_mask(parents)[start:end, :end])
    if parents:
        assert sliced.span(1)[0] == 0 and sliced.span(sliced.num_levels)[1] == len(parents)


def test_slices_are_views_of_one_mask():
    sliced = SlicedMask(product_topology((2, 2)))
    storage = sliced.upto(6).untyped_storage().data_ptr()
    assert sliced.upto(3).untyped_storage().data_ptr() == storage
    assert sliced.level(2).untyped_storage().data_ptr() == storage


def test_a_product_tree_has_its_nodes_level_by_level():
    assert product_topology((2, 1)) == (-1, -1, 0, 1)
    assert product_topology((1, 3)) == (-1, 0, 0, 0)
    assert len(product_topology((4, 2, 2, 1))) == 4 + 8 + 16 + 16
    assert product_topology(()) == ()


def test_the_largest_cape_tree_is_a_chain_with_leaves_beside_it():
    assert max_cape_topology(3, 3) == (-1, -1, -1, 0, 0, 0, 3, 3, 3)
    assert max_cape_topology(2, 1) == (-1, 0)
    assert max_cape_topology(0, 4) == ()


@pytest.mark.parametrize("parents", [(-1, 0, -1), (1, -1), (-1, 0, 1, 0)])
def test_topologies_out_of_breadth_first_order_are_refused(parents):
    with pytest.raises(ValueError, match="node"):
        SlicedMask(parents)


def test_slices_outside_the_largest_tree_are_refused():
    sliced = SlicedMask((-1, 0))
    for ask in (lambda: sliced.upto(3), lambda: sliced.level(3), lambda: sliced.level(0)):
        with pytest.raises(ValueError, match="asked for"):
            ask()


def test_a_known_topology_is_not_built_again_and_the_cache_stays_bounded():
    cache = MaskCache(capacity=2)
    first = cache.get((-1, 0))
    assert cache.get((-1, 0)) is first
    assert torch.equal(cache.get((-1, -1, 0)), ancestor_mask((-1, -1, 0)))
    cache.get((-1,))
    assert len(cache) == 2
    assert cache.get((-1, 0)) is not first
