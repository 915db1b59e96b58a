"""Timing of alternatives on a machine that may be busy with something else meanwhile."""

import time
from collections.abc import Callable, Sequence

from slipstream.core.timing import Clock

_PASSES = 6


def best_seconds(
    alternatives: Sequence[Callable[[], object]],
    *,
    passes: int = _PASSES,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """Return the shortest time of each alternative, in seconds.

    They run in turn, `passes` times after a first one that warms up: what else the machine does
    only ever adds to a time, and hardly to every one of them.
    """
    best = [float("inf")] * len(alternatives)
    for number in range(passes + 1):
        for index, run in enumerate(alternatives):
            start = clock()
            run()
            if number:
                best[index] = min(best[index], clock() - start)
    return best
