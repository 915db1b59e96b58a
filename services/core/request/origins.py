"""Origins of an output's tokens. Pure."""

from enum import StrEnum

from slipstream.core.draft.ngram_sources import CopySource
from slipstream.core.tree import ROOT
from slipstream.core.types import Proposal, Verdict


class TokenOrigin(StrEnum):
    """Proposer of a token that became final."""

    DRAFT = "draft"
    """The draft: its best guess, behind nothing but best guesses."""
    RUNNER_UP = "runner-up"
    """The draft: a leaf of CaPE, or another branch of its tree."""
    LOOKUP = "lookup"
    """Copied from the text, or forced by a grammar."""
    NGRAM_STORE = "ngram-store"
    """From the n-gram store of the model."""
    LEARNED = "learned"
    """Copied from the text of an earlier request."""
    TARGET = "target"
    """The target's own: the prompt's first token, and those that no proposal had."""


_OF_SOURCES = {
    CopySource.LOOKUP: TokenOrigin.LOOKUP,
    CopySource.GRAMMAR: TokenOrigin.LOOKUP,
    CopySource.STORE: TokenOrigin.NGRAM_STORE,
    CopySource.LEARNED: TokenOrigin.LEARNED,
}

Origins = tuple[TokenOrigin | None, ...]
"""One for each token; None for what was final before this call, whose rounds are not known."""


def origins_of(
    proposal: Proposal, verdict: Verdict, *, has_roots: bool = False
) -> tuple[TokenOrigin, ...]:
    """Return the origin of each of the verdict's tokens.

    With `has_roots` the tree hangs under target-initialised roots, which are the target's own.
    """
    tree = proposal.tree
    num_modelled = len(tree) - len(proposal.sources)
    path = tree.matching(verdict.tokens[: verdict.num_accepted])
    origins: list[TokenOrigin] = []
    above, is_best = ROOT, True
    for node in path:
        if has_roots and above == ROOT:
            origins.append(TokenOrigin.TARGET)
        elif node >= num_modelled:
            origins.append(_OF_SOURCES[proposal.sources[node - num_modelled]])
        else:
            is_best = is_best and node == tree.children(above)[0]
            origins.append(TokenOrigin.DRAFT if is_best else TokenOrigin.RUNNER_UP)
        above = node
    return (*origins, *[TokenOrigin.TARGET] * (len(verdict.tokens) - len(path)))
