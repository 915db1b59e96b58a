"""The processes that share one model, as one of them sees it: sums, parts side by side, agreement.

Every collective call must be made by all ranks, in the same order.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from slipstream.config import set_local_rank
from slipstream.models.decoder import RowRule

_WAIT = timedelta(hours=2)
"""Time that ranks wait for each other: one may read its weights much later than another."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank `rank` of `size`; one alone needs no process group."""

    rank: int = 0
    size: int = 1

    def total(self, part: Tensor, *, in_order: bool) -> Tensor:
        """The sum of every rank's `part`, which may be overwritten.

        A library adds in an order that depends on an element's place in the buffer, and so on who
        shares a forward. `in_order` adds by rank instead, in float32, and rounds once.
        """
        part = part.contiguous()
        if not in_order:
            dist.all_reduce(part)
            return part
        first, *others = self._all(part)
        total = first.float()
        for other in others:
            total += other
        return total.to(part.dtype)

    def side_by_side(self, part: Tensor, size: int) -> Tensor:
        """Every rank's columns [..., width], `size` in all; the last rank may have fewer."""
        width = -(-size // self.size)
        parts = self._all(F.pad(part, (0, width - part.shape[-1])))
        return torch.cat(parts, -1)[..., :size]

    def heads(self, own: Tensor) -> Tensor | None:
        """Keys and values [2 * own heads, n, d] of every rank as [2 * heads, n, d]; for rank 0."""
        own = own.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(own, parts, dst=0)
        if parts is None:
            return None
        pairs = [part.unflatten(0, (2, -1)) for part in parts]
        return torch.cat(pairs, 1).flatten(0, 1)

    def broadcast(self, value: Tensor) -> Tensor:
        """Return rank 0's `value`, with which the others' is overwritten."""
        value = value.contiguous()
        dist.broadcast(value, src=0)
        return value

    def agree(self, answer: bool, device: torch.device) -> bool:
        """Return rank 0's answer."""
        return bool(self.broadcast(torch.tensor(int(answer), device=device)))

    def agree_on_rule(self, rule: RowRule, device: torch.device) -> RowRule:
        """Return the row counts that every rank's rule allows."""
        if self.size == 1:
            return rule
        own = torch.tensor([rule.min_rows, rule.max_rows], device=device)
        for low, high in (part.tolist() for part in self._all(own)):
            rule = rule.intersect(RowRule(low, high))
        return rule

    def _all(self, part: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part)
        return parts


ALONE = Ranks()


def join_ranks(rank: int, size: int, *, device: str, meeting: str) -> Ranks:
    """Meet the other ranks at `meeting`, a file that all of them can write; waits for them.

    On CUDA each rank has the GPU of its number.
    """
    set_local_rank(rank)  # by which transformers chooses the GPU
    own = torch.device("cuda", rank) if device == "cuda" else None
    if own is not None:
        torch.cuda.set_device(own)
    dist.init_process_group(
        "gloo" if own is None else "nccl",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=_WAIT,
        device_id=own,
    )
    return Ranks(rank, size)


def leave_ranks() -> None:
    """Part from the other ranks. Again is fine."""
    if dist.is_initialized():
        dist.destroy_process_group()
