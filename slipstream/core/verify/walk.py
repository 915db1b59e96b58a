"""Walking a proposed tree down, one position per depth: what every verification mode shares.

A mode is the rule of a single position. Rows of logits are computed only where a walk goes,
because evaluating a distribution costs more than a node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.core.logprobs import TokenLogprob
from slipstream.core.tree import TokenTree
from slipstream.core.verify.noise import Floats

Row = Callable[[int], Floats]
"""fp32 logits [V] of the position after a node; `ROOT` stands for the last final token."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Result of verification.

    `nodes` are the accepted nodes from the root down, `token` is the target's own after them.
    With target-initialised roots there is no such token, but `roots` in its place. `logprobs` are
    those of each token, where they are asked for.
    """

    nodes: tuple[int, ...]
    token: int | None
    roots: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class WalkStep:
    """Decision of a position's rule: to go on to `child`, or to end the walk with `token`."""

    child: int | None
    token: int | None = None


PositionRule = Callable[[int, Floats, Sequence[int]], WalkStep]
"""A mode's rule: (node, logits [V] of the position after it, every token before it) -> step."""


def descend(
    tree: TokenTree, node: int, tokens: Sequence[int], rule: PositionRule, row: Row
) -> Walk:
    """Walk down from `node`, the last of `tokens`, until `rule` ends it.

    Calls `row` once for each node visited, `node` first. The walk's nodes are those below it.
    """
    tokens = list(tokens)
    nodes: list[int] = []
    while True:
        step = rule(node, row(node), tokens)
        if step.child is None:
            return Walk(tuple(nodes), step.token)
        node = step.child
        nodes.append(node)
        tokens.append(tree.tokens[node])
