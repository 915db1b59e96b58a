"""Growing level by level: product trees, and forks under target-initialised roots."""

from collections.abc import Sequence

from slipstream.core.stop import Stop
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal, SparseLaw
from slipstream.draft.growth import Growing, Grown, Growth
from slipstream.draft.slots import Slot

_ROOT_STATS = NodeStats(1.0, 1.0, 0.0)
"""Of a node that the target itself has drawn."""


class _Levels:
    """A tree grown level by level, every node of it scored."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.stats: list[NodeStats] = []
        self.laws: dict[int, SparseLaw | None] = {}

    def add(self, parent: int, slot: Slot, count: int) -> list[int]:
        """Hang the first `count` candidates of the slot below `parent`; their indices."""
        tokens = slot.tokens[:count]
        start = len(self.tokens)
        self.tokens += tokens
        self.parents += [parent] * len(tokens)
        self.stats += [slot.stats(token) for token in tokens]
        self.laws[parent] = slot.law
        return list(range(start, len(self.tokens)))

    def slots(self, nodes: Sequence[int], count: int) -> Growing[list[Slot]]:
        """The slots below `nodes`, the last ones added."""
        return self._growth.extend(
            [self.tokens[node] for node in nodes], [self.parents[node] for node in nodes], count
        )

    def proposal(self, stopped_by: str) -> Proposal:
        tree = TokenTree(tuple(self.tokens), tuple(self.parents))
        laws = self._growth.laws(tree, self.laws)
        return Proposal(tree, tuple(self.stats), laws, stopped_by)


def grow_product(growth: Growth, plan: Plan, stop: Stop) -> Grown:
    """`plan.widths[d]` children below each node of depth d (MCSD's k-config).

    Levels that no longer fit `max_nodes` or the depth are left out whole. The stop policy is
    asked about the surest node of each level.
    """
    levels = _Levels(growth)
    above = [ROOT]
    for depth, width in enumerate(plan.widths[: min(plan.max_depth, growth.max_depth)], 1):
        if len(levels.tokens) + len(above) * width > plan.max_nodes:
            return levels.proposal("nodes")
        if depth == 1:
            slots = [(yield from growth.first(width))]
        else:
            slots = yield from levels.slots(above, width)
        pairs = zip(above, slots, strict=True)
        above = [node for parent, slot in pairs for node in levels.add(parent, slot, width)]
        if all(stop.should_stop(growth.signal(slot, depth, 1.0)) for slot in slots):
            return levels.proposal("policy")
    return levels.proposal("depth")


def grow_fork(growth: Growth, plan: Plan, stop: Stop) -> Grown:
    """One chain under each target-initialised root, grown together (DynaSD, 6.3).

    Goes on while the policy lets any branch go on. Roots count as depth 1: they are tokens of
    the round, though not the draft's.
    """
    levels = _Levels(growth)
    roots = plan.roots[: plan.max_nodes]
    levels.tokens += roots
    levels.parents += [ROOT] * len(roots)
    levels.stats += [_ROOT_STATS] * len(roots)
    level = list(range(len(roots)))
    yield from growth.hold()
    for depth in range(1, min(plan.max_depth, growth.max_depth)):
        if len(levels.tokens) + len(level) > plan.max_nodes:
            return levels.proposal("nodes")
        slots = yield from levels.slots(level, 1)
        pairs = zip(level, slots, strict=True)
        level = [child for node, slot in pairs for child in levels.add(node, slot, 1)]
        if all(stop.should_stop(growth.signal(slot, depth, 1.0)) for slot in slots):
            return levels.proposal("policy")
    return levels.proposal("depth")
