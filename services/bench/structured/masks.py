"""How long the masks of known texts take to find, slot by slot. Prints nothing."""

from collections.abc import Iterable, Sequence

from slipstream.core.grammar import Grammar
from slipstream.core.timing import Clock
from slipstream.target.grammars import Grammars

Followed = tuple[Grammar, Sequence[int]]
"""A grammar, and the tokens of a text that follows it, its stop token included."""


def mask_times_us(
    grammars: Grammars, texts: Iterable[Followed], stops: frozenset[int], clock: Clock
) -> list[float]:
    """Microseconds of each slot's mask, the compilation of its grammar apart."""
    found = []
    for grammar, tokens in texts:
        follower = grammars.follower(grammar, stops)
        for count in range(len(tokens)):
            output = list(tokens[:count])
            began = clock()
            follower.allowed(output)
            found.append((clock() - began) * 1e6)
    return found
