"""Growing EAGLE-2's dynamic tree: expand the likeliest paths, then keep the likeliest nodes."""

import math

from slipstream.core.dynamic import DynamicTree
from slipstream.core.stop import Stop, StopSignal
from slipstream.core.tree import ROOT
from slipstream.core.types import NodeStats, Plan, Proposal
from slipstream.draft.growth import Growing, Grown, Growth
from slipstream.draft.slots import Slot

FRONTIER = 10
"""Nodes expanded per level, and candidates of each (EAGLE-2, appendix A)."""


def grow_dynamic(growth: Growth, plan: Plan, stop: Stop) -> Grown:
    """Expand level by level to the plan's depth, then re-rank (EAGLE-2, sections 4.1 and 4.2).

    A stop policy is asked about the likeliest path of each level.
    """
    width = min(FRONTIER, plan.max_nodes)
    tree, stats = DynamicTree(), list[NodeStats]()
    limit = min(plan.max_depth, growth.max_depth)
    rows = {ROOT: ROOT}
    slots = {ROOT: (yield from growth.first(width))}
    stopped_by = growth.reach.ended_by if limit == growth.max_depth else "depth"
    depth = 1
    while True:
        for node, slot in slots.items():
            # A probability may round to a hair above 1.
            tree.grow(node, slot.tokens, [min(_log(prob), 0.0) for prob in slot.probs])
            stats += [slot.stats(token) for token in slot.tokens]
        if depth == limit:
            break
        if stop.should_stop(_signal(growth, tree, slots, depth)):
            stopped_by = "policy"
            break
        slots = yield from _expanded(growth, tree, rows, width)
        if not slots:
            stopped_by = "eos"
            break
        depth += 1
    kept, created = tree.rerank(plan.max_nodes)
    return Proposal(kept, tuple(stats[index] for index in created), (), stopped_by)


def _signal(growth: Growth, tree: DynamicTree, slots: dict[int, Slot], depth: int) -> StopSignal:
    best = max(slots, key=lambda node: 0.0 if node == ROOT else tree.score(node))
    reach = 1.0 if best == ROOT else math.exp(tree.score(best))
    slot = slots[best]
    return growth.signal(slot, depth, reach * growth.acceptance(slot))


def _expanded(
    growth: Growth, tree: DynamicTree, rows: dict[int, int], width: int
) -> Growing[dict[int, Slot]]:
    """The slots below the next frontier, by creation index; `rows` then has its nodes' own in
    `growth`."""
    nodes = [node for node in tree.frontier(width) if not growth.ends_with(tree.token(node))]
    if not nodes:
        return {}
    parents = [rows[tree.parent(node)] for node in nodes]
    rows.update({node: growth.num_grown + at for at, node in enumerate(nodes)})
    slots = yield from growth.extend([tree.token(node) for node in nodes], parents, width)
    return dict(zip(nodes, slots, strict=True))


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -math.inf
