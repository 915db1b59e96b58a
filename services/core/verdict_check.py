"""Whether a verdict can be one on the proposal: what comes from a target elsewhere is checked.

Knows the verification modes and their demands; nothing of logits or models.
"""

import math

from slipstream.core.errors import InvalidRequest
from slipstream.core.options import MAX_NODES
from slipstream.core.proposal_check import check_tokens
from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import ROOT, TokenTree
from slipstream.core.types import Proposal, Session, Verdict, Verification


def check_verdict(
    sequence: TokenSequence, proposal: Proposal, verdict: Verdict, *, vocab_size: int
) -> None:
    """Raise `InvalidRequest` for a verdict that no target reaches on `proposal` for `sequence`."""
    session, num_tokens = sequence.session, len(sequence)
    _check_length(session, num_tokens, proposal, verdict)
    _check_accepted(proposal.tree, verdict)
    check_tokens(verdict.tokens, vocab_size, "the verdict")
    check_tokens(verdict.forced, vocab_size, "the forced text")
    _check_roots(session, verdict, vocab_size)
    if verdict.num_cached > num_tokens:
        raise InvalidRequest(f"{verdict.num_cached} of {num_tokens} tokens are said to be cached")
    if len(verdict.margins) not in (0, len(proposal.rivals)) or any(
        map(math.isnan, verdict.margins)
    ):
        raise InvalidRequest(
            f"{len(verdict.margins)} margins, or no numbers, are over {len(proposal.rivals)} rivals"
        )


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
        nodes = {at for node in nodes for at in tree.children(node) if tree.tokens[at] == token}
    if len(accepted) < verdict.num_accepted or not nodes:
        raise InvalidRequest(f"{verdict.num_accepted} accepted tokens are no path of the proposal")


def _check_roots(session: Session, verdict: Verdict, vocab_size: int) -> None:
    roots, most = verdict.roots, 0
    if session.verification is Verification.TARGET_INIT:
        most = min(session.num_roots, MAX_NODES)
    is_over = verdict.finish_reason is not None
    if len(roots) > most or (most and not roots and not is_over):
        raise InvalidRequest(f"the verdict has {len(roots)} roots, not 1 to {most}")
    check_tokens(roots, vocab_size, "the list of roots")
