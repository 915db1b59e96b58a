"""Checks of proposals and verdicts: drafts and targets elsewhere are untrusted."""

import math
from collections.abc import Sequence

from slipstream.core.errors import InvalidRequest, check, check_token_ids
from slipstream.core.round import STOP_REASONS
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import MAX_NODES, ROOT, TokenTree
from slipstream.core.types import Proposal, Session, SparseDistribution, Verdict, Verification

_MASS_TOLERANCE = 1e-3


def check_proposal(
    session: Session, proposal: Proposal, *, vocab_size: int, roots: Sequence[int] = ()
) -> None:
    """Raises `InvalidRequest` when `proposal` can't be verified in the session's mode.

    `roots` are those of the last verdict, if there were any.
    """
    tree, mode = proposal.tree, session.verification
    _check_sizes(proposal)
    if proposal.stopped_by not in STOP_REASONS:  # metrics keep every value there ever was
        raise InvalidRequest(
            f"drafting was ended by {proposal.stopped_by[:40]!r},"
            f" not by one of {', '.join(STOP_REASONS)}"
        )
    check_token_ids("the proposal", tree.tokens, vocab_size)
    are_distinct = len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)
    if mode is not Verification.MCSD_REPLACEMENT and not are_distinct:
        raise InvalidRequest("siblings carry the same token, but were not drawn with replacement")
    if mode is Verification.TARGET_INIT:
        _check_fork(tree, roots)
    drawn = nodes_with_distributions(session, tree)
    if drawn and not proposal.distributions:
        raise InvalidRequest(
            f"{mode.value} verification needs the distributions candidates were drawn from"
        )
    for node in drawn:
        children = [tree.tokens[child] for child in tree.children(node)]
        _check_distribution(proposal.distributions[node + 1], node, children, vocab_size)


def nodes_with_distributions(session: Session, tree: TokenTree) -> list[int]:
    """The nodes whose children must come with the distribution they were drawn from."""
    mode = session.verification
    inner = sorted(set(tree.parents))
    if mode is Verification.EXACT:
        return []
    if mode is Verification.TARGET_INIT:
        return [] if session.sampling.is_greedy else [node for node in inner if node != ROOT]
    return inner


def _check_sizes(proposal: Proposal) -> None:
    nodes = len(proposal.tree)
    if proposal.stats and len(proposal.stats) != nodes:
        raise InvalidRequest(f"a tree of {nodes} nodes has {len(proposal.stats)} statistics")
    for stats in proposal.stats:
        numbers = (stats.top_prob, stats.prob, stats.entropy, stats.score or 0.0)
        if not all(map(math.isfinite, numbers)):
            raise InvalidRequest(f"a node's statistics are {numbers}, which are no numbers")
    if proposal.distributions and len(proposal.distributions) != nodes + 1:
        raise InvalidRequest(
            f"a tree of {nodes} nodes has {len(proposal.distributions)} distributions, but needs"
            f" {nodes + 1}"
        )


def _check_fork(tree: TokenTree, roots: Sequence[int]) -> None:
    first = [tree.tokens[node] for node in tree.children(ROOT)]
    if roots and first and first != list(roots):
        raise InvalidRequest(f"the proposal has roots {first}, but the target drew {list(roots)}")
    below = [parent for parent in tree.parents if parent != ROOT]
    if len(set(below)) != len(below):
        raise InvalidRequest("target-init verification takes one chain under each root only")


def _check_distribution(
    distribution: SparseDistribution | None, node: int, children: Sequence[int], vocab_size: int
) -> None:
    if distribution is None:
        raise InvalidRequest(
            f"the children of node {node} come without the distribution they are drawn of"
        )
    if len(distribution.tokens) != len(distribution.probs):
        raise InvalidRequest(
            f"the distribution at node {node} has {len(distribution.tokens)} tokens,"
            f" {len(distribution.probs)} probabilities"
        )
    if len(set(distribution.tokens)) != len(distribution.tokens):
        raise InvalidRequest(f"the distribution at node {node} names a token twice")
    check_token_ids(f"the distribution at node {node}", distribution.tokens, vocab_size)
    # Each number first: what is none, or not finite, has no sum.
    place = f"of the distribution at node {node}"
    for prob in distribution.probs:
        check(0 <= prob <= 1 + _MASS_TOLERANCE, f"a probability {place}", prob, "from 0 to 1")
    total = math.fsum(distribution.probs)
    check(abs(total - 1) <= _MASS_TOLERANCE, f"the mass {place}", total, "1")
    probs = dict(zip(distribution.tokens, distribution.probs, strict=True))
    for token in children:
        if not probs.get(token):
            raise InvalidRequest(
                f"node {node} has child {token}, which its distribution can't have drawn"
            )


def check_verdict(
    sequence: TokenSequence, proposal: Proposal, verdict: Verdict, *, vocab_size: int
) -> None:
    """Raise `InvalidRequest` for a verdict that no target reaches on `proposal` for `sequence`."""
    session, num_tokens = sequence.session, len(sequence)
    _check_length(session, num_tokens, proposal, verdict)
    _check_accepted(proposal.tree, verdict)
    check_token_ids("the verdict", verdict.tokens, vocab_size)
    check_token_ids("the forced text", verdict.forced, vocab_size)
    _check_roots(session, verdict, vocab_size)
    if verdict.num_cached > num_tokens:
        raise InvalidRequest(f"{verdict.num_cached} of {num_tokens} tokens are said to be cached")


def _check_length(session: Session, num_tokens: int, proposal: Proposal, verdict: Verdict) -> None:
    count, is_over = len(verdict.tokens), verdict.finish_reason is not None
    most = 1 + max(proposal.tree.depths(), default=0)
    room = max(session.num_prompt_tokens + session.max_tokens - num_tokens, 0)
    if count > min(most, room):
        raise InvalidRequest(f"the verdict has {count} tokens, above {min(most, room)}")
    if is_over:
        return
    if count == room:
        raise InvalidRequest(f"the request goes on at its limit of {session.max_tokens} tokens")
    draws_roots = session.verification is Verification.TARGET_INIT and not len(proposal.tree)
    if not count and not draws_roots:
        raise InvalidRequest("the verdict has no token, and the request goes on")


def _check_accepted(tree: TokenTree, verdict: Verdict) -> None:
    accepted = verdict.tokens[: verdict.num_accepted]
    nodes = {ROOT}
    for token in accepted:  # siblings may be alike, where they are drawn with replacement
        nodes = {
            child for node in nodes for child in tree.children(node) if tree.tokens[child] == token
        }
    if len(accepted) < verdict.num_accepted or not nodes:
        raise InvalidRequest(f"{verdict.num_accepted} accepted tokens are no path of the proposal")


def _check_roots(session: Session, verdict: Verdict, vocab_size: int) -> None:
    roots, most = verdict.roots, 0
    if session.verification is Verification.TARGET_INIT:
        most = min(session.num_roots, MAX_NODES)
    is_over = verdict.finish_reason is not None
    if len(roots) > most or (most and not roots and not is_over):
        raise InvalidRequest(f"the verdict has {len(roots)} roots, not 1 to {most}")
    check_token_ids("the list of roots", roots, vocab_size)
