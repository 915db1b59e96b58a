"""Most memory that a process has taken."""

import resource
from typing import Any

import torch


def memory_use(device: str) -> dict[str, Any]:
    """Return the most bytes that tensors, and the allocator, have taken on a GPU; on a CPU the
    most that the process has."""
    if device != "cpu":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    return {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}
