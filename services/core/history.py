"""How an engine takes in a delta: compare, truncate, append."""

from collections.abc import Sequence

from slipstream.core.errors import SessionOutOfSync
from slipstream.core.types import Delta


def apply_delta(held: Sequence[int], delta: Delta) -> tuple[list[int], int]:
    """The session's tokens after `delta`, and how many leading ones are as before.

    Raises `SessionOutOfSync` when the delta starts above the tokens held.

    >>> apply_delta([5, 6, 7], Delta(1, (6, 9)))
    ([5, 6, 9], 2)
    """
    return [*held[: delta.start], *delta.tokens], num_same(held, delta)


def num_same(held: Sequence[int], delta: Delta) -> int:
    """How many leading tokens stay as they are. Raises what `apply_delta` raises."""
    if not 0 <= delta.start <= len(held):
        raise SessionOutOfSync(
            f"the delta starts at position {delta.start}, but {len(held)} tokens are held"
        )
    same = delta.start
    for ours, theirs in zip(held[delta.start :], delta.tokens, strict=False):
        if ours != theirs:
            break
        same += 1
    return same
