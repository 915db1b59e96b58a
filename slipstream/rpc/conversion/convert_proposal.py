"""Proposals on the wire, and the trees that a draft goes on with."""

from collections.abc import Sequence

from slipstream.core.draft.ahead import AheadTree
from slipstream.core.errors import InvalidRequest
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import NodeStats, Proposal, SparseDistribution
from slipstream.rpc.counts import check_proposal_counts
from slipstream.rpc.v1 import common_pb2, draft_pb2


def proposal_to_pb(proposal: Proposal, *, with_stats: bool = True) -> common_pb2.Proposal:
    """Statistics column by column, if at all; scores and distributions only where there are any.

    Raises `InvalidRequest` for ids that are no token's, such as negative ones.
    """
    try:
        return _proposal_to_pb(proposal, proposal.stats if with_stats else ())
    except ValueError as error:  # out of the range of a field
        raise InvalidRequest(f"the proposal can't be told: {error}") from None


def _proposal_to_pb(proposal: Proposal, stats: Sequence[NodeStats]) -> common_pb2.Proposal:
    scores = [stat.score for stat in stats if stat.score is not None]
    laws = [
        common_pb2.NodeLaw(
            node=at - 1, law=common_pb2.SparseLaw(tokens=own.tokens, probs=own.probs)
        )
        for at, own in enumerate(proposal.distributions)
        if own is not None
    ]
    return common_pb2.Proposal(
        tree=common_pb2.TokenTree(tokens=proposal.tree.tokens, parents=proposal.tree.parents),
        top_probs=[stat.top_prob for stat in stats],
        probs=[stat.prob for stat in stats],
        entropies=[stat.entropy for stat in stats],
        scores=scores if len(scores) == len(stats) else (),
        laws=laws,
        stopped_by=proposal.stopped_by,
    )


def proposal_from_pb(message: common_pb2.Proposal) -> Proposal:
    """Convert a proposal. Raises `InvalidRequest` for its form; see `check_proposal`."""
    check_proposal_counts(message)
    tree = _tree_from_pb(message.tree)
    distributions = _distributions_from_pb(message.laws, len(tree))
    return Proposal(tree, _stats_from_pb(message), distributions, message.stopped_by)


def ahead_to_pb(tree: Proposal) -> draft_pb2.SpeculateResponse:
    """Convert a tree that a draft went on with into a message of its stream."""
    return draft_pb2.SpeculateResponse(ahead=draft_pb2.DraftedAhead(tree=proposal_to_pb(tree)))


def ahead_from_pb(message: common_pb2.Proposal) -> AheadTree:
    """Convert a tree that a draft went on with. Raises `InvalidRequest` for its form."""
    check_proposal_counts(message)
    columns = (message.top_probs, message.probs, message.entropies)
    return AheadTree(_tree_from_pb(message.tree), *map(tuple, columns))


def _tree_from_pb(message: common_pb2.TokenTree) -> TokenTree:
    try:
        return TokenTree(tuple(message.tokens), tuple(message.parents))
    except ValueError as error:
        raise InvalidRequest(f"the proposal's tree is broken: {error}") from None


def _stats_from_pb(message: common_pb2.Proposal) -> tuple[NodeStats, ...]:
    columns = (message.top_probs, message.probs, message.entropies)
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or len(message.scores) not in (0, *sizes):
        raise InvalidRequest("the proposal's statistics differ in length from each other")
    scores: Sequence[float | None] = message.scores or [None] * len(message.probs)
    return tuple(NodeStats(*row) for row in zip(*columns, scores, strict=True))


def _distributions_from_pb(
    messages: Sequence[common_pb2.NodeLaw], num_nodes: int
) -> tuple[SparseDistribution | None, ...]:
    if not messages:
        return ()
    distributions: list[SparseDistribution | None] = [None] * (num_nodes + 1)
    for message in messages:
        if not ROOT <= message.node < num_nodes:
            raise InvalidRequest(f"a distribution is for node {message.node} of {num_nodes}")
        tokens, probs = tuple(message.law.tokens), tuple(message.law.probs)
        distributions[message.node + 1] = SparseDistribution(tokens, probs)
    return tuple(distributions)
