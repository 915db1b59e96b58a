"""Growing one path: a chain, and a chain with CaPE's leaves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.cape import Budget, Chain, cape_tree
from slipstream.core.stop import TOO_DEAR, Stop
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
    slots = path.slots
    chain = Chain(
        [slot.tokens[0] for slot in slots],
        [slot.tokens[1:] for slot in slots],
        [slot.top_prob for slot in slots],
        None if is_drawn else [growth.acceptance(slot) for slot in slots],
        None if is_drawn else [slot.probs[1:] for slot in slots],
    )
    tree = cape_tree(chain, Budget(plan.max_nodes, growth.cape_table, plan.row_prices))
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
    laws = {node: path.slots[0 if node == ROOT else depths[node]].law for node in set(tree.parents)}
    return Proposal(tree, stats, growth.laws(tree, laws), path.stopped_by)
