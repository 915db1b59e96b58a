"""Rounds as they are shown: what was proposed, what was kept, and where it came from. Pure."""

from dataclasses import dataclass

from slipstream.core.request.origins import TokenOrigin, node_origins, origins_of
from slipstream.core.round import Round
from slipstream.core.text.text import Detokenizer


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
    tree, verdict, has_roots = round_.proposal.tree, round_.verdict, bool(round_.plan.roots)
    kept = set(tree.matching(verdict.tokens[: verdict.num_accepted]))
    origins = node_origins(round_.proposal, has_roots=has_roots)
    nodes = tuple(
        RoundNode(token, text.token_bytes(token), parent, origin, node in kept)
        for node, (token, parent, origin) in enumerate(
            zip(tree.tokens, tree.parents, origins, strict=True)
        )
    )
    final = zip(
        verdict.tokens, origins_of(round_.proposal, verdict, has_roots=has_roots), strict=True
    )
    tokens = tuple(
        RoundToken(text.token_bytes(token) if text.decode((token,)) else b"", origin)
        for token, origin in final
    )
    return RoundTree(nodes, tokens, round_.proposing_s, round_.verifying_s)
