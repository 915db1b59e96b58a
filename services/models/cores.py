"""Which thread of a process computes. Knows torch's thread pools, nothing of engines."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def load_on(call: Callable[[Callable[[], T]], T], load: Callable[[], T], threads: int | None) -> T:
    """What `load` makes, on the thread where `call` runs it, with `threads` or torch's choice.

    Every thread that computes in parallel gets a pool of its own. With more pool threads than
    cores OpenMP stops spinning, and a round of a small model takes 1.5 times as long. So one
    thread loads and computes, and the caller's does neither.
    """
    count = threads or torch.get_num_threads()
    torch.set_num_threads(1)

    def loaded() -> T:
        torch.set_num_threads(count)
        return load()

    return call(loaded)
