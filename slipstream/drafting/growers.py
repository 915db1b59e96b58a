"""The shapes of proposals: chains, CaPE, trees of fixed widths, forks, dynamic trees."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.core.draft.cape import Chain, cape_tree
from slipstream.core.draft.dynamic import CandidateTree
from slipstream.core.policy.stop import Stop
from slipstream.core.round import TOO_DEAR
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Plan, Proposal, Shape, SparseDistribution, Verification
from slipstream.drafting.growth import Growth, ProposalSteps, Steps
from slipstream.models.scorer import Candidates


@dataclass(frozen=True, slots=True)
class _Path:
    positions: list[Candidates]
    stopped_by: str


def grow_chain(growth: Growth, plan: Plan, stop: Stop) -> ProposalSteps:
    """Grow a path of each position's best candidate."""
    path = yield from _follow(growth, plan, stop, num_candidates=1)
    tree = TokenTree.chain([position.tokens[0] for position in path.positions])
    return _proposal(growth, tree, path)


def grow_cape(growth: Growth, plan: Plan, stop: Stop) -> ProposalSteps:
    """Grow a chain with leaves beside each position, more of them where the draft is less sure.

    (GliDe with a CaPE, appendix A.) In `mcsd` the leaves are further draws without replacement,
    and are dropped by their place only, never by which token they are.
    """
    path = yield from _follow(growth, plan, stop, num_candidates=1 + max(growth.profile.cape_table))
    is_drawn = growth.session.verification is not Verification.EXACT
    positions = path.positions
    chain = Chain(
        [position.tokens[0] for position in positions],
        [position.tokens[1:] for position in positions],
        [position.top_prob for position in positions],
        None if is_drawn else [growth.acceptance(position) for position in positions],
        None if is_drawn else [position.probs[1:] for position in positions],
    )
    tree = cape_tree(chain, plan.max_nodes, growth.profile.cape_table, plan.row_prices)
    path = path if len(tree) else _Path(positions, TOO_DEAR)
    return _proposal(growth, tree, path)


def _follow(growth: Growth, plan: Plan, stop: Stop, *, num_candidates: int) -> Steps[_Path]:
    if growth.can_follow:
        path = yield from growth.follow(plan, stop, num_candidates)
        return _Path(path, _end(growth, plan, stop, path) or "policy")
    path = [(yield from growth.first(num_candidates))]
    while not (end := _end(growth, plan, stop, path)):
        token, parent = path[-1].tokens[0], len(path) - 2
        path += yield from growth.extend([token], [parent], num_candidates)
    return _Path(path, end)


def _end(growth: Growth, plan: Plan, stop: Stop, path: Sequence[Candidates]) -> str | None:
    """Return the reason why a path ends behind its last position; None where it goes on."""
    last, depth, limit = path[-1], len(path), growth.max_path(plan)
    path_prob = math.prod(map(growth.acceptance, path))
    if growth.ends_with(last.tokens[0]):
        return "eos"
    if depth >= limit:
        return growth.limit_reason(limit)
    if stop.should_stop(growth.signal(last, depth, path_prob)):
        return "policy"
    return TOO_DEAR if plan.worth is not None and path_prob < plan.worth else None


def _proposal(growth: Growth, tree: TokenTree, path: _Path) -> Proposal:
    depths = tree.depths()
    each = zip(tree.tokens, depths, strict=True)
    stats = tuple(path.positions[depth - 1].stats(token) for token, depth in each)
    distributions = {
        node: path.positions[0 if node == ROOT else depths[node]].distribution
        for node in set(tree.parents)
    }
    return Proposal(tree, stats, growth.distributions(tree, distributions), path.stopped_by)


_ROOT_STATS = NodeStats(1.0, 1.0, 0.0)
"""Statistics of a node that the target itself has drawn."""


class _LevelTree:
    """A tree that grows level by level; every node of it is scored."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.stats: list[NodeStats] = []
        self.distributions: dict[int, SparseDistribution | None] = {}

    def add(self, parent: int, found: Candidates, count: int) -> list[int]:
        tokens = found.tokens[:count]
        start = len(self.tokens)
        self.tokens += tokens
        self.parents += [parent] * len(tokens)
        self.stats += [found.stats(token) for token in tokens]
        self.distributions[parent] = found.distribution
        return list(range(start, len(self.tokens)))

    def grow(
        self, plan: Plan, stop: Stop, above: list[int], widths: Sequence[int]
    ) -> ProposalSteps:
        """Grow levels below the nodes `above`, of `widths` children each, and return a proposal.

        Levels that no longer fit `max_nodes` are left out whole. A level is the last one if the
        stop policy would stop at every node of it.
        """
        growth = self._growth
        for depth, width in enumerate(widths, 1):
            if len(self.tokens) + len(above) * width > plan.max_nodes:
                return self.proposal("nodes")
            found = yield from self._below(above, width)
            pairs = zip(above, found, strict=True)
            above = [node for parent, below in pairs for node in self.add(parent, below, width)]
            if all(stop.should_stop(growth.signal(below, depth, 1.0)) for below in found):
                return self.proposal("policy")
        return self.proposal("depth")

    def _below(self, nodes: Sequence[int], count: int) -> Steps[list[Candidates]]:
        if nodes == [ROOT]:
            return [(yield from self._growth.first(count))]
        tokens = [self.tokens[node] for node in nodes]
        parents = [self.parents[node] for node in nodes]
        return (yield from self._growth.extend(tokens, parents, count))

    def proposal(self, stopped_by: str) -> Proposal:
        tree = TokenTree(tuple(self.tokens), tuple(self.parents))
        distributions = self._growth.distributions(tree, self.distributions)
        return Proposal(tree, tuple(self.stats), distributions, stopped_by)


def grow_product(growth: Growth, plan: Plan, stop: Stop) -> ProposalSteps:
    """Grow `plan.widths[d]` children below each node of depth d (MCSD's k-config)."""
    widths = plan.widths[: growth.max_depth(plan)]
    return (yield from _LevelTree(growth).grow(plan, stop, [ROOT], widths))


def grow_fork(growth: Growth, plan: Plan, stop: Stop) -> ProposalSteps:
    """Grow a chain under each target-initialised root, all of them together (DynaSD, 6.3).

    They go on while the policy lets any of them go on. Roots count as depth 1: they are tokens of
    the round, though the target has drawn them.
    """
    levels, roots = _LevelTree(growth), plan.roots[: plan.max_nodes]
    levels.tokens += roots
    levels.parents += [ROOT] * len(roots)
    levels.stats += [_ROOT_STATS] * len(roots)
    yield from growth.hold()
    widths = [1] * (growth.max_depth(plan) - 1)
    return (yield from levels.grow(plan, stop, list(range(len(roots))), widths))


FRONTIER = 10
"""Nodes expanded per level, and candidates of each (EAGLE-2, appendix A)."""


def grow_dynamic(growth: Growth, plan: Plan, stop: Stop) -> ProposalSteps:
    """Expand level by level to the plan's depth, then re-rank (EAGLE-2, sections 4.1 and 4.2).

    The stop policy decides by the likeliest path of each level.
    """
    width = min(FRONTIER, plan.max_nodes)
    tree = CandidateTree()
    limit = growth.max_depth(plan)
    rows = {ROOT: ROOT}
    found = {ROOT: (yield from growth.first(width))}
    stopped_by = growth.limit_reason(limit)
    depth = 1
    while True:
        for node, below in found.items():
            tree.add(node, below.tokens, [*map(below.stats, below.tokens)], below.probs)
        if depth == limit:
            break
        best = max(found, key=tree.prob)
        path_prob = tree.prob(best) * growth.acceptance(found[best])
        if stop.should_stop(growth.signal(found[best], depth, path_prob)):
            stopped_by = "policy"
            break
        nodes = [node for node in tree.next(width, depth) if not growth.ends_with(tree.token(node))]
        found = yield from _expand(growth, tree, rows, nodes, width)
        if not found:
            stopped_by = "eos"
            break
        depth += 1
    return tree.best(plan.max_nodes, stopped_by)


def _expand(
    growth: Growth, tree: CandidateTree, rows: dict[int, int], nodes: Sequence[int], count: int
) -> Steps[dict[int, Candidates]]:
    """Return the candidates below nodes; `rows` then has their places in `growth`."""
    if not nodes:
        return {}
    parents = [rows[tree.parent(node)] for node in nodes]
    rows.update({node: row for row, node in enumerate(nodes, len(growth.depths))})
    found = yield from growth.extend([*map(tree.token, nodes)], parents, count)
    return dict(zip(nodes, found, strict=True))


GROWERS: Mapping[Shape, Callable[[Growth, Plan, Stop], ProposalSteps]] = {
    Shape.CHAIN: grow_chain,
    Shape.CAPE: grow_cape,
    Shape.DYNAMIC: grow_dynamic,
    Shape.PRODUCT: grow_product,
    Shape.FORK: grow_fork,
}
"""Growth of a tree by its shape."""
