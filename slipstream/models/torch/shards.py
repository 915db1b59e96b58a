"""A model that transformers has split by its own plan, with plain tensors for what was split.

transformers wraps every split module's forward and keeps its weights as distributed tensors. Here
linear layers and embeddings become ordinary modules of this rank's part, which can be packed like
any other, and what the plan says about their outputs is one explicit call. What the plan splits
in other ways (experts, say) keeps transformers' module.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from slipstream.core.errors import InvalidRequest, ModelError
from slipstream.models.torch.ranks import Ranks, RowParallelLinear, linear_of

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
