"""Attention of batched tokens over their sessions' keys, with a token's own key merged apart.

A token's result is lerp(attention over earlier keys, own value, w), w the own key's softmax
weight. Earlier keys are read at the slots of their positions, so an accepted tree node has
computed the same bits as plain decoding would have, wherever its own key was stored.
"""

import torch
from torch import Tensor

from slipstream.models.kv.paged import PagedTokens
from slipstream.models.kv.pool import round_up
from slipstream.models.numerics.operators import apart, together
from slipstream.models.target.batched_tokens import BatchedTokens, QuerySegment

_VECTOR = 64


def attend(
    query: Tensor, fresh: Tensor, layer: Tensor, batch: BatchedTokens | PagedTokens, scale: float
) -> Tensor:
    """Return attention [R, heads * d] of queries [R, heads, d], whose own keys and values are
    `fresh` [R, 2 * kv_heads, d].

    `layer` [2 * kv_heads, slots, d] holds keys, then values, this forward's included.
    """
    if isinstance(batch, PagedTokens):
        return batch.kernel(query, layer, batch, scale)
    num_rows, num_heads, dim = query.shape
    num_kv = fresh.shape[1] // 2
    query = query.reshape(num_rows, num_kv, num_heads // num_kv, dim)
    key, value = fresh.unsqueeze(2).split(num_kv, 1)
    parts = [
        _attend_past(query[segment.start : segment.stop], layer, segment, scale)
        for segment in batch.segments
    ]
    past, log_mass = parts[0]
    if len(parts) > 1:
        past = torch.cat([part[0] for part in parts])
        log_mass = torch.cat([part[1] for part in parts])
    own = (query * key).sum(-1, dtype=torch.float32)
    past_weight = _past_weight(log_mass, own, scale).to(value.dtype)
    merged = torch.lerp(value, past.to(value.dtype), past_weight.unsqueeze(-1))
    return merged.view(num_rows, num_heads * dim)


def _past_weight(log_mass: Tensor, own: Tensor, scale: float) -> Tensor:
    """sigmoid(log_mass - scale * own): what the keys before a token weigh against its own.

    The last elements of a buffer that is no multiple of the vector width take a scalar path
    with other bits, so the buffer is.
    """
    size = own.numel()
    buffer = torch.empty(round_up(size, _VECTOR), dtype=torch.float32, device=own.device)
    weight = buffer[:size].view(own.shape)
    torch.sub(log_mass, own, alpha=scale, out=weight)
    buffer.sigmoid_()
    return weight


def _attend_past(
    query: Tensor, layer: Tensor, segment: QuerySegment, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs [r, kv_heads, group, d] and log masses [r, kv_heads, group] over earlier keys."""
    num_kv = query.shape[1]
    if segment.slots is None:
        seen = layer[:, segment.base : segment.base + segment.width]
    else:
        seen = layer.index_select(1, segment.slots)
    keys, values = seen.unsqueeze(0).split(num_kv, 1)
    attend_keys = apart if segment.is_apart else together
    past, log_mass = attend_keys(query, keys, values, segment.mask, scale)
    if segment.has_first:
        # Position 0 has nothing before it: its result is its own value alone.
        past[0] = 0.0
        log_mass[0] = float("-inf")
    return past, log_mass
