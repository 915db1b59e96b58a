"""A sliced mask shows each node its ancestors and itself, and is built once per topology."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.tree import ROOT, TokenTree
from slipstream.models.glide.glide_torch import SlicedMasks, ancestor_mask


@st.composite
def topologies(draw):
    """Parents of any tree, parents first."""
    size = draw(st.integers(1, 14))
    return tuple(draw(st.integers(ROOT, node - 1)) for node in range(size))


@given(topologies())
def test_a_row_shows_the_path_down_to_its_node(parents):
    mask = ancestor_mask(parents)
    tree = TokenTree(tuple(range(len(parents))), parents)
    for node in range(len(parents)):
        assert set(mask[node].nonzero()[:, 0].tolist()) == set(tree.path(node))


@given(topologies(), st.data())
def test_every_slice_is_that_of_a_mask_built_for_it(parents, data):
    masks = SlicedMasks()
    for _ in range(6):
        size = data.draw(st.integers(1, len(parents)))
        start = data.draw(st.integers(0, size - 1))
        expected = ancestor_mask(parents[:size])[start:]
        assert torch.equal(masks.rows(parents[:size], start), expected)


def test_other_topologies_have_masks_of_their_own_and_the_oldest_go():
    masks = SlicedMasks(capacity=2)
    for parents in ((-1, 0, 0), (-1, 0, 1), (-1, -1, 1)):
        assert torch.equal(masks.rows(parents, 0), ancestor_mask(parents))
    assert len(masks) == 2
