"""Growing one path: a chain, and a chain with CaPE's leaves."""

from dataclasses import dataclass

from slipstream.core.cape import Budget, cape_tree
from slipstream.core.stop import Stop
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Plan, Proposal, Verification
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
    tree = cape_tree(
        [slot.tokens[0] for slot in path.slots],
        [slot.tokens[1:] for slot in path.slots],
        top_probs=[slot.top_prob for slot in path.slots],
        budget=Budget(plan.max_nodes, growth.cape_table, _worth(growth, plan)),
        probs=None if is_drawn else [slot.probs[1:] for slot in path.slots],
    )
    return _proposal(growth, tree, path)


def _follow(growth: Growth, plan: Plan, stop: Stop, *, num_candidates: int) -> Growing[_Path]:
    slots: list[Slot] = []
    slot = yield from growth.first(num_candidates)
    path_prob = 1.0
    limit = min(plan.max_depth, plan.max_nodes, growth.max_depth)
    while True:
        slots.append(slot)
        path_prob *= growth.acceptance(slot)
        if growth.ends_with(slot.tokens[0]):
            return _Path(tuple(slots), "eos")
        if len(slots) >= limit:
            return _Path(tuple(slots), "lag" if limit == growth.max_depth else "depth")
        if stop.should_stop(growth.signal(slot, len(slots), path_prob)):
            return _Path(tuple(slots), "policy")
        if plan.worth is not None and path_prob < plan.worth:
            return _Path(tuple(slots), "load")
        [slot] = yield from growth.extend([slot.tokens[0]], [len(slots) - 2], num_candidates)


def _worth(growth: Growth, plan: Plan) -> float:
    """Least chance that makes a leaf worth its row."""
    return growth.row_cost if plan.worth is None else plan.worth


def _proposal(growth: Growth, tree: TokenTree, path: _Path) -> Proposal:
    depths = tree.depths()
    stats = tuple(
        path.slots[depth - 1].stats(token) for token, depth in zip(tree.tokens, depths, strict=True)
    )
    laws = {node: path.slots[0 if node == ROOT else depths[node]].law for node in set(tree.parents)}
    return Proposal(tree, stats, growth.laws(tree, laws), path.stopped_by)
