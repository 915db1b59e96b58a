"""What a draft's memory is for: its own keys and values, and those that it mirrors of a target.

Both grow with the same tokens, so that one budget covers them in pages of both. Knows no sessions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.core.errors import CapacityError, NoRoom
from slipstream.core.request.options import MAX_NODES
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, round_up
from slipstream.models.memory import MemoryPlan, budget_bytes, shown

IN_PROCESS = "0.25"
"""The budget of a draft beside its target: several of them may be open at once."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a draft model takes besides keys and values, in bytes; `max_tokens` is the length of its
    longest session."""

    weight_bytes: int
    workspace_bytes: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """How much a draft may take for keys and values, in all.

    `budget` is as in `models.memory.budget_bytes`; no more is taken than `max_sessions` sessions of
    the longest length can use. `is_mirroring` says that the target's keys are copied here.
    """

    budget: str = IN_PROCESS
    max_sessions: int = 64
    is_mirroring: bool = False

    def plan(self, layout: KvLayout, needs: Needs, *, num_target_layers: int = 0) -> MemoryPlan:
        """Pages of `layout`, each with as many tokens of the target's layers if they are mirrored.

        Raises `InvalidRequest` for no budget, `CapacityError` for less than a page.
        """
        page_bytes = layout.bytes_per_page
        if self.is_mirroring:
            page_bytes += mirror_page_bytes(layout, num_target_layers)
        size = budget_bytes(self.budget, layout.device, workspace_bytes=needs.workspace_bytes)
        if size < page_bytes:
            raise CapacityError(
                f"a budget of {self.budget} is {shown(size)} for keys and values, but a page takes"
                f" {shown(page_bytes)}"
            )
        longest = round_up(needs.max_tokens + MAX_NODES, BLOCK_SIZE) // BLOCK_SIZE
        count = min(size // page_bytes, self.max_sessions * longest)
        return MemoryPlan(needs.weight_bytes, count, page_bytes, needs.workspace_bytes)


def mirror_page_bytes(layout: KvLayout, num_target_layers: int) -> int:
    """Bytes of a page's tokens in so many layers of the target, whose heads are the draft's."""
    return layout.bytes_per_page // layout.num_layers * num_target_layers


class ByteBudget:
    """Counts bytes against a limit. For one thread."""

    def __init__(
        self, limit: int | None = None, make_room: Callable[[int], None] = lambda num_bytes: None
    ) -> None:
        """`limit` None is none. `make_room` may give back some, so that so many become free."""
        self.limit = limit
        self.num_bytes = 0
        self._make_room = make_room

    def has(self, num_bytes: int) -> bool:
        """Whether so many are free."""
        return self.limit is None or self.num_bytes + num_bytes <= self.limit

    def take(self, num_bytes: int) -> None:
        """Count more of them. Raises `NoRoom` above the limit, and then counts none."""
        if not self.has(num_bytes):
            self._make_room(num_bytes)
        if not self.has(num_bytes):
            raise NoRoom(
                f"{shown(num_bytes)} more for the target's keys and values are needed, but"
                f" {shown(self.num_bytes)} of {shown(self.limit or 0)} are taken"
            )
        self.num_bytes += num_bytes

    def give(self, num_bytes: int) -> None:
        """Count so many less."""
        self.num_bytes -= num_bytes
        assert self.num_bytes >= 0
