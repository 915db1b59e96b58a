"""The processes that share one model, as one of them sees it: sums, parts side by side, agreement,
and linear layers whose outputs are such sums.

Every collective call must be made by all ranks, in the same order.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slipstream.config import set_local_rank
from slipstream.models.cuda.graphs import release_graphs
from slipstream.models.decoder import RowRule

_WAIT = timedelta(hours=2)
"""Time that ranks wait for each other: one may read its weights much later than another."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank `rank` of `size`; one alone needs no process group."""

    rank: int = 0
    size: int = 1

    def parts(self, part: Tensor, *, in_order: bool) -> Tensor:
        """Return what adds up to the sum of every rank's `part` [n, ...], which may be overwritten:
        that sum, or with `in_order` all parts by rank [ranks * n, ...].

        A library adds in an order that depends on an element's place in the buffer, and so on what
        else is in a forward. The caller adds by rank instead, in float32, and rounds once.
        """
        part = part.contiguous()
        if in_order:
            return self.all_parts(part)
        dist.all_reduce(part)
        return part

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
        if self.size > 1:
            dist.broadcast(value, src=0)
        return value

    def agree(self, answer: bool, device: torch.device) -> bool:
        """Return rank 0's answer."""
        return bool(self.broadcast(torch.tensor(int(answer), device=device)))

    def agree_on_rule(self, rule: RowRule, device: torch.device) -> RowRule:
        """Return the row counts that every rank's rule allows."""
        if self.size == 1:
            return rule
        own = torch.tensor([[rule.min_rows, rule.max_rows]], device=device)
        for low, high in self.all_parts(own).tolist():
            rule = rule.intersect(RowRule(low, high))
        return rule

    def all_parts(self, part: Tensor) -> Tensor:
        """Return every rank's `part` [n, ...] as [ranks * n, ...], by one kernel."""
        parts = part.new_empty(self.size * len(part), *part.shape[1:])
        assert dist.group.WORLD is not None, "several ranks have met"
        dist.group.WORLD._allgather_base(parts, part).wait()
        return parts


ALONE = Ranks()


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are split: each rank's product is a part of the output."""

    def __init__(self, part: nn.Linear, ranks: Ranks, *, in_order: bool) -> None:
        super().__init__()
        self.part, self._ranks, self._in_order = part, ranks, in_order

    def parts(self, *rows: Tensor) -> Tensor:
        """Return what adds up to the output [R, out] for rows as the layer takes them: see
        `Ranks.parts`."""
        return self._ranks.parts(self.part(*rows), in_order=self._in_order)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, ..., in] -> [n, ..., out]."""
        first, *others = self.parts(x).split(len(x))
        total: Tensor = first.float()
        for other in others:
            total += other
        return total.to(x.dtype)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer over these very tensors."""
    made = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made


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
    """Part from the other ranks, which do so too. Again is fine."""
    if dist.is_initialized():
        release_graphs()  # NCCL waits for those that hold its sums
        dist.destroy_process_group()
