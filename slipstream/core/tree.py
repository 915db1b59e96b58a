"""Token trees, which drafts propose, and the copies of known text in them. Values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slipstream.core.errors import InvalidRequest

ROOT = -1
MAX_NODES = 127
"""Most nodes of a tree: 128 rows with the pending token. No device seen verifies more for free."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Draft tokens as a tree, stored parents-first.

    `parents[i]` is the index of node i's parent, or -1 (`ROOT`) when node i continues the
    last final token. A chain is the tree whose parents are -1, 0, 1, ... Siblings carry
    different tokens, except when they were drawn with replacement.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    _children: dict[int, list[int]] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=dict
    )
    _depths: list[int] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=list
    )

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise InvalidRequest(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise InvalidRequest(f"node {node} has parent {parent}; parents come first")
            self._children.setdefault(parent, []).append(node)
            self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of_nodes(
        cls, tokens: Sequence[int], parents: Sequence[int], kept: Sequence[int]
    ) -> "TokenTree":
        """The tree of the nodes `kept`, ascending, out of others; a kept node's parent is kept."""
        place = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
        return cls(
            tuple(tokens[node] for node in kept), tuple(place[parents[node]] for node in kept)
        )

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "TokenTree":
        """The tree that is a single path."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def children(self, node: int) -> Sequence[int]:
        """Indices of a node's children, in the order they were proposed; `ROOT` for the roots."""
        return self._children.get(node, ())

    def depths(self) -> tuple[int, ...]:
        """Depth of each node; 1 for the children of the root."""
        return tuple(self._depths)

    def path(self, node: int) -> tuple[int, ...]:
        """Node indices from the first below the root down to `node`; empty for `ROOT`."""
        steps: list[int] = []
        while node != ROOT:
            steps.append(node)
            node = self.parents[node]
        return tuple(reversed(steps))

    def matching(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The nodes that spell as many of the first `tokens` as the tree has, from the root on."""
        path: list[int] = []
        for token in tokens:
            children = self.children(path[-1] if path else ROOT)
            child = next((node for node in children if self.tokens[node] == token), None)
            if child is None:
                break
            path.append(child)
        return tuple(path)

    def is_chain(self) -> bool:
        """Return whether every node continues the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))


EMPTY = TokenTree()


class CopySource(StrEnum):
    """Source of a proposed token that no draft model proposed."""

    LOOKUP = "lookup"
    """Earlier in the text of its own session."""
    STORE = "ngram-store"
    """The n-gram store of the model."""
    GRAMMAR = "grammar"
    """Forced by the grammar of the request."""


@dataclass(frozen=True, slots=True)
class Copying:
    """Limits of the copies in a round.

    Matches of at least `shortest` tokens count, and a copied path has up to `max_depth` tokens.
    The draft is spared where the next token is a copy with a probability of `alone` or more.
    """

    shortest: int
    max_depth: int
    alone: float = math.inf
