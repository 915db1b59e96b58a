"""The processes that share one model, as one of them sees it: sums, parts side by side, agreement;
and a model that transformers has split by its own plan, with plain tensors for what was split.

Every collective call must be made by all ranks, in the same order. transformers wraps every split
module's forward and keeps its weights as distributed tensors. Here linear layers and embeddings
become ordinary modules of this rank's part, which can be packed like any other, and what the plan
says about their outputs is one explicit call. What the plan splits in other ways (experts, say)
keeps transformers' module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from slipstream.config import set_local_rank
from slipstream.core.errors import InvalidRequest, ModelError
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


_GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
_KEYS = frozenset({"k_proj", "qkv_proj", "query_key_value"})
"""Projections that make keys, alone or with others."""


class GatheredLinear(nn.Module):
    """A linear layer of which each rank has some of the `num_out` outputs, made whole."""

    def __init__(self, part: nn.Linear, ranks: Ranks, num_out: int) -> None:
        super().__init__()
        self.part, self._ranks, self._num_out = part, ranks, num_out

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., num_out]."""
        part, ranks = self.part(x), self._ranks
        width = -(-self._num_out // ranks.size)  # the last rank may have fewer
        parts = ranks.all_parts(F.pad(part, (0, width - part.shape[-1])).contiguous())
        return torch.cat(parts.chunk(ranks.size), -1)[..., : self._num_out]


class ShardedEmbedding(nn.Module):
    """An embedding's rows on this rank."""

    def __init__(self, weight: Tensor, num_all: int, ranks: Ranks) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._first = -(-num_all // ranks.size) * ranks.rank
        self._ranks = ranks

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings [..., d]: every rank gives zeros for the ids of the others."""
        own = ids - self._first
        is_here = (own >= 0) & (own < len(self.weight))
        rows = nn.functional.embedding(own.where(is_here, 0), self.weight)
        return self._ranks.parts(rows * is_here.unsqueeze(-1), in_order=False)


def require_split(config: Any, num_ranks: int, *, name: str) -> None:
    """Raise `InvalidRequest` where a model of this configuration can't be split so many ways."""
    text = config.get_text_config()
    plan: Mapping[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    split = {path.rpartition(".")[2] for path, style in plan.items() if style == "colwise"}
    if not split & _KEYS:
        raise InvalidRequest(
            f"tensor_parallel is {num_ranks}, but transformers has no plan that splits the"
            f" attention of a {text.model_type} model such as {name}"
        )
    num_heads = text.num_attention_heads
    num_kv = getattr(text, "num_key_value_heads", None) or num_heads
    for count, what in ((num_kv, "key heads"), (num_heads, "heads")):
        if count % num_ranks:
            raise InvalidRequest(
                f"tensor_parallel is {num_ranks}, but {name} has {count} {what}, which don't divide"
                " among so many"
            )


def localise(model: Any, ranks: Ranks, *, in_order: bool) -> None:
    """Swap what transformers has split for this rank's parts; `in_order` as in `Ranks.parts`.

    Raises `ModelError` for a linear layer that is split in an unknown way.
    """
    plan: Mapping[str, str] = model.tp_plan
    for name, module in list(model.named_modules()):
        if not isinstance(getattr(module, "weight", None), DTensor):
            continue
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name), "none")
        if isinstance(module, nn.Linear):
            part: nn.Module = _linear(module, style, name, ranks, in_order)
        elif type(module) is nn.Embedding and style == "embedding_rowwise":
            part = ShardedEmbedding(_own(module.weight), module.num_embeddings, ranks)
        else:
            continue
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, part)


def own_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights on this rank."""
    return sum(_own(weight).nbytes for weight in model.parameters())


def _linear(module: nn.Linear, style: str, name: str, ranks: Ranks, in_order: bool) -> nn.Module:
    has_bias = module.bias is not None and (style != "rowwise" or ranks.rank == 0)  # once in a sum
    part = linear_of(_own(module.weight), _own(module.bias) if has_bias else None)
    if style == "colwise":
        return part
    if style in _GATHERED:
        return GatheredLinear(part, ranks, module.weight.shape[0])
    if style != "rowwise":
        raise ModelError(f"{name} is split as {style!r} by transformers' plan, which is unknown")
    return RowParallelLinear(part, ranks, in_order=in_order)


def _own(tensor: Tensor) -> Tensor:
    """Return a tensor's part on this rank, or the whole where it is not split."""
    own: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.detach()
