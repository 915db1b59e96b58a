"""The shapes of proposals: chains, CaPE, trees of fixed widths, forks, dynamic trees."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.draft.cape import Chain, NodeBudget, cape_tree
from slipstream.core.draft.dynamic import DynamicTree
from slipstream.core.policy.stop import TOO_DEAR, Stop, StopSignal
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal, SparseDistribution, Verification
from slipstream.draft.growth import Growing, Grown, Growth
from slipstream.draft.slots import Slot


@dataclass(frozen=True, slots=True)
class _Path:
    slots: tuple[Slot, ...]
    stopped_by: str


def grow_chain(growth: Growth, plan: Plan, stop: Stop) -> Grown:
    """One path of the best candidate each."""
    path = yield from _follow(growth, plan, stop, num_candidates=1)
    tree = TokenTree.chain([slot.tokens[0] for slot in path.slots])
    return _proposal(growth, tree, path)


def grow_cape(growth: Growth, plan: Plan, stop: Stop) -> Grown:
    """A chain with runner-up leaves at every slot, more of them where the draft is less sure.

    (GliDe with a CaPE, appendix A.) In `mcsd` the runner-ups are further draws without
    replacement, and leaves are dropped by their place only, never by which token they are.
    """
    path = yield from _follow(growth, plan, stop, num_candidates=1 + max(growth.cape_table))
    is_drawn = growth.session.verification is not Verification.EXACT
    slots = path.slots
    chain = Chain(
        [slot.tokens[0] for slot in slots],
        [slot.tokens[1:] for slot in slots],
        [slot.top_prob for slot in slots],
        None if is_drawn else [growth.acceptance(slot) for slot in slots],
        None if is_drawn else [slot.probs[1:] for slot in slots],
    )
    tree = cape_tree(chain, NodeBudget(plan.max_nodes, growth.cape_table, plan.row_prices))
    path = path if len(tree) else _Path(slots, TOO_DEAR)
    return _proposal(growth, tree, path)


def _follow(growth: Growth, plan: Plan, stop: Stop, *, num_candidates: int) -> Growing[_Path]:
    if growth.can_follow(stop):
        found = yield from growth.follow(plan, stop, num_candidates)
        return _Path(tuple(found), _end(growth, plan, stop, found) or "policy")
    slots = [(yield from growth.first(num_candidates))]
    while not (end := _end(growth, plan, stop, slots)):
        token, parent = slots[-1].tokens[0], len(slots) - 2
        slots += yield from growth.extend([token], [parent], num_candidates)
    return _Path(tuple(slots), end)


def _end(growth: Growth, plan: Plan, stop: Stop, slots: Sequence[Slot]) -> str | None:
    """What ends a path behind its last slot, if anything does."""
    slot, depth, limit = slots[-1], len(slots), growth.limit(plan)
    path_prob = math.prod(map(growth.acceptance, slots))
    if growth.ends_with(slot.tokens[0]):
        return "eos"
    if depth >= limit:
        return growth.reach.ended_by if limit == growth.max_depth else "depth"
    if stop.should_stop(growth.signal(slot, depth, path_prob)):
        return "policy"
    return TOO_DEAR if plan.worth is not None and path_prob < plan.worth else None


def _proposal(growth: Growth, tree: TokenTree, path: _Path) -> Proposal:
    depths = tree.depths()
    stats = tuple(
        path.slots[depth - 1].stats(token) for token, depth in zip(tree.tokens, depths, strict=True)
    )
    distributions = {
        node: path.slots[0 if node == ROOT else depths[node]].distribution
        for node in set(tree.parents)
    }
    return Proposal(tree, stats, growth.distributions(tree, distributions), path.stopped_by)


_ROOT_STATS = NodeStats(1.0, 1.0, 0.0)
"""Of a node that the target itself has drawn."""


class _Levels:
    """A tree grown level by level, every node of it scored."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.stats: list[NodeStats] = []
        self.distributions: dict[int, SparseDistribution | None] = {}

    def add(self, parent: int, slot: Slot, count: int) -> list[int]:
        """Hang the first `count` candidates of the slot below `parent`; their indices."""
        tokens = slot.tokens[:count]
        start = len(self.tokens)
        self.tokens += tokens
        self.parents += [parent] * len(tokens)
        self.stats += [slot.stats(token) for token in tokens]
        self.distributions[parent] = slot.distribution
        return list(range(start, len(self.tokens)))

    def slots(self, nodes: Sequence[int], count: int) -> Growing[list[Slot]]:
        """The slots below `nodes`, the last ones added."""
        return self._growth.extend(
            [self.tokens[node] for node in nodes], [self.parents[node] for node in nodes], count
        )

    def proposal(self, stopped_by: str) -> Proposal:
        tree = TokenTree(tuple(self.tokens), tuple(self.parents))
        distributions = self._growth.distributions(tree, self.distributions)
        return Proposal(tree, tuple(self.stats), distributions, stopped_by)


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
