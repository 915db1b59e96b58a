"""Memory of a draft: for its own keys and values, and for those that it mirrors of a target.

Both grow with the same tokens, so that one budget covers them in pages of both.
"""

from dataclasses import dataclass

from slipstream.core.errors import CapacityError
from slipstream.core.tree import MAX_NODES
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, round_up
from slipstream.models.memory import MemoryPlan, budget_bytes, shown

IN_PROCESS = "0.25"
"""The budget of a draft beside its target: several of them may be open at once."""
NUM_PAGES = 64
"""Memory of a draft without a budget: pages for some 8,000 tokens."""


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """Limits of a draft's memory for keys and values.

    `budget` is as in `models.memory.budget_bytes`; no more is taken than `max_sessions` sessions of
    the longest length can use. `is_mirroring` is set if the target's keys are copied here.
    """

    budget: str = IN_PROCESS
    max_sessions: int = 64
    is_mirroring: bool = False

    def plan(
        self,
        layout: KvLayout,
        *,
        weight_bytes: int,
        workspace_bytes: int,
        max_tokens: int,
        num_target_layers: int = 0,
    ) -> MemoryPlan:
        """Return a plan in pages of `layout`, with as many tokens of mirrored target layers.

        The model takes so many bytes besides keys and values; its longest session has `max_tokens`.
        Raises `InvalidRequest` for no budget, `CapacityError` for less than a page.
        """
        page_bytes = layout.bytes_per_page
        if self.is_mirroring:
            page_bytes += mirror_page_bytes(layout, num_target_layers)
        size = budget_bytes(self.budget, layout.device, workspace_bytes=workspace_bytes)
        if size < page_bytes:
            raise CapacityError(
                f"a budget of {self.budget} is {shown(size)} for keys and values, but a page takes"
                f" {shown(page_bytes)}"
            )
        longest = round_up(max_tokens + MAX_NODES, BLOCK_SIZE) // BLOCK_SIZE
        count = min(size // page_bytes, self.max_sessions * longest)
        return MemoryPlan(weight_bytes, count, page_bytes, workspace_bytes)


def mirror_page_bytes(layout: KvLayout, num_target_layers: int) -> int:
    """Return the bytes of a page's tokens in so many layers of a target with the draft's heads."""
    return layout.bytes_per_page // layout.num_layers * num_target_layers
