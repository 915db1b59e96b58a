"""Origins of an output's tokens, and rounds as they are shown. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from slipstream.core.round import Round
from slipstream.core.text import Detokenizer
from slipstream.core.tree import ROOT, CopySource


class TokenOrigin(StrEnum):
    """Proposer of a token that became final."""

    DRAFT = "draft"
    """The draft: its best guess, behind nothing but best guesses."""
    RUNNER_UP = "runner-up"
    """The draft: a leaf of CaPE, or another branch of its tree."""
    LOOKUP = "lookup"
    """Copied from the text, or forced by a grammar."""
    NGRAM_STORE = "ngram-store"
    """Copied from the n-gram store of the model."""
    TARGET = "target"
    """The target's own: the prompt's first token, and those that no proposal had."""


_OF_SOURCES = {
    CopySource.LOOKUP: TokenOrigin.LOOKUP,
    CopySource.GRAMMAR: TokenOrigin.LOOKUP,
    CopySource.STORE: TokenOrigin.NGRAM_STORE,
}

Origins = tuple[TokenOrigin | None, ...]
"""One for each token; None for what was final before this call, whose rounds are not known."""


def node_origins(round_: Round) -> tuple[TokenOrigin, ...]:
    """Return the origin of each node of the tree; target-initialised roots are the target's own."""
    proposal, tree = round_.proposal, round_.proposal.tree
    num_modelled = len(tree) - len(proposal.sources)
    origins: list[TokenOrigin] = []
    best = {ROOT}
    for node, parent in enumerate(tree.parents):
        is_best = parent in best
        if round_.plan.roots and parent == ROOT:
            origins.append(TokenOrigin.TARGET)
        elif node >= num_modelled:
            origins.append(_OF_SOURCES[proposal.sources[node - num_modelled]])
        else:
            is_best = is_best and node == tree.children(parent)[0]
            origins.append(TokenOrigin.DRAFT if is_best else TokenOrigin.RUNNER_UP)
        if is_best:
            best.add(node)
    return tuple(origins)


def origins_of(round_: Round) -> tuple[TokenOrigin, ...]:
    """Return the origin of each of the verdict's tokens. See `node_origins`."""
    verdict, origins = round_.verdict, node_origins(round_)
    path = round_.proposal.tree.matching(verdict.tokens[: verdict.num_accepted])
    kept = [origins[node] for node in path]
    return (*kept, *[TokenOrigin.TARGET] * (len(verdict.tokens) - len(path)))


@dataclass(frozen=True, slots=True)
class RoundNode:
    """A draft token of a round's tree, with its bytes; `parent` is the index of another or -1."""

    token_id: int
    text: bytes
    parent: int
    origin: TokenOrigin
    is_kept: bool


@dataclass(frozen=True, slots=True)
class RoundToken:
    """A token that a round made final, with its bytes; none for one that writes no text."""

    text: bytes
    origin: TokenOrigin


@dataclass(frozen=True, slots=True)
class RoundTree:
    """One round: its tree, the tokens that it made final, and the seconds that it took."""

    nodes: tuple[RoundNode, ...]
    tokens: tuple[RoundToken, ...]
    draft_s: float
    verify_s: float


def round_tree(round_: Round, text: Detokenizer) -> RoundTree:
    """Return what there is to see of a round that has its verdict."""
    tree, verdict = round_.proposal.tree, round_.verdict
    kept = set(tree.matching(verdict.tokens[: verdict.num_accepted]))
    rows = enumerate(zip(tree.tokens, tree.parents, node_origins(round_), strict=True))
    nodes = tuple(
        RoundNode(token, text.token_bytes(token), parent, origin, node in kept)
        for node, (token, parent, origin) in rows
    )
    final = zip(verdict.tokens, origins_of(round_), strict=True)
    tokens = tuple(
        RoundToken(text.token_bytes(token) if text.decode((token,)) else b"", origin)
        for token, origin in final
    )
    return RoundTree(nodes, tokens, round_.proposing_s, round_.verifying_s)
