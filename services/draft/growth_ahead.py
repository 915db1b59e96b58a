"""A proposal's tree goes on growing while the target verifies it: the likeliest nodes first."""

from slipstream.core.draft.ahead import BestFirstTree
from slipstream.core.tree import ROOT
from slipstream.draft.growth import Growth
from slipstream.draft.reader import Candidates
from slipstream.draft.request import ProposalSteps

WIDTH = 8
"""Nodes that are scored in a step."""
NUM_STEPS = 5
NUM_CANDIDATES = 6
"""Candidates that are kept below each node: the target's own token is none of the proposal's."""


def grow_ahead(growth: Growth, max_nodes: int) -> ProposalSteps:
    """Go on with a tree that was proposed; return the likeliest nodes of all, from the root on.

    What was read already is read again where a device has computed it as a chain.
    """
    tree, rows = BestFirstTree(), {ROOT: ROOT}
    if ROOT not in growth.read:
        yield from growth.first(NUM_CANDIDATES)
    for row, found in growth.read.items():
        if row != ROOT:
            token, parent = growth.nodes[row]
            rows[tree.child(next(n for n, at in rows.items() if at == parent), token)] = row
        _add(growth, tree, next(n for n, at in rows.items() if at == row), found)
    depth = growth.depth_limit.max_depth
    for _ in range(NUM_STEPS):
        nodes = tree.next(WIDTH, max_depth=depth, ends=growth.session.stop_token_ids)
        if not nodes:
            break
        parents = [rows[tree.parent(node)] for node in nodes]
        rows.update({node: len(growth.depths) + at for at, node in enumerate(nodes)})
        tokens = [tree.token(node) for node in nodes]
        found = yield from growth.extend(tokens, parents, NUM_CANDIDATES)
        for node, below in zip(nodes, found, strict=True):
            _add(growth, tree, node, below)
    return tree.best(max_nodes)


def _add(growth: Growth, tree: BestFirstTree, node: int, found: Candidates) -> None:
    """Add the candidates below a node; what the first one leaves is shared by the others."""
    first = growth.acceptance(found)
    share = (1 - first) / max(1 - found.top_prob, 1e-6)
    probs = [first, *(min(prob * share, 1.0) for prob in found.probs[1:])]
    stats = [found.stats(token) for token in found.tokens]
    tree.add(node, found.tokens, stats, probs)
