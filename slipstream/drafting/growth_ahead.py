"""A proposal's tree goes on growing while the target verifies it: the likeliest nodes first."""

from slipstream.core.draft.ahead import BestFirstTree
from slipstream.core.draft.cape import shares_of
from slipstream.core.tree import ROOT
from slipstream.drafting.growth import Growth, ProposalSteps
from slipstream.drafting.reader import Candidates

NUM_STEPS, WIDTH = 2, 10
"""Steps that a tree goes on for at a time, and nodes that are scored in each."""
NUM_CANDIDATES = 10
"""Candidates that are kept below each node: the token that a verification adds of its own is none
of those that were proposed."""


def grow_ahead(growth: Growth, max_nodes: int) -> ProposalSteps:
    """Go on with a tree that was proposed; return the likeliest nodes of all, from the root on.

    Again, it goes on from where it was. A chain that a device has computed at once is scored again:
    its nodes are not in the state.
    """
    if ROOT not in growth.read:
        yield from growth.first(NUM_CANDIDATES)
    tree, rows = BestFirstTree(), {ROOT: ROOT}
    node_of = {ROOT: ROOT}
    for row, found in growth.read.items():
        if row != ROOT:
            token, parent = growth.nodes[row]
            node = node_of[row] = tree.child(node_of[parent], token)
            rows[node] = row
        _add(growth, tree, node_of[row], found)
    for _ in range(NUM_STEPS):
        nodes = tree.next(
            WIDTH, max_depth=growth.depth_limit.max_depth, ends=growth.session.stop_token_ids
        )
        if not nodes:
            break
        tokens, parents = [*map(tree.token, nodes)], [rows[tree.parent(node)] for node in nodes]
        rows.update({node: row for row, node in enumerate(nodes, len(growth.nodes))})
        found_below = yield from growth.extend(tokens, parents, NUM_CANDIDATES)
        for node, found in zip(nodes, found_below, strict=True):
            _add(growth, tree, node, found)
    return tree.best(max_nodes)


def _add(growth: Growth, tree: BestFirstTree, node: int, found: Candidates) -> None:
    """Add the candidates below a node. What the first one's estimated acceptance leaves is shared
    among the others as the draft has it."""
    first = growth.acceptance(found)
    shares = shares_of(found.top_prob, found.probs[1:])
    probs = [first, *((1 - first) * share for share in shares)]
    tree.add(node, found.tokens, [found.stats(token) for token in found.tokens], probs)
