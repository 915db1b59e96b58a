"""Attention of a forward's rows over their sessions' keys, with a row's own key merged apart.

A row's result is lerp(attention over earlier keys, own value, w), w the own key's softmax
weight. Earlier keys are read at the slots of their positions, so an accepted tree node has
computed the same bits as plain decoding would have, wherever its own key was stored.
"""

import torch
from torch import Tensor

from slipstream.models.operators import apart, together
from slipstream.models.paged import Lanes
from slipstream.models.pool import round_up
from slipstream.models.rows import Look, Rows

_VECTOR = 64


def attend(query: Tensor, fresh: Tensor, layer: Tensor, rows: Rows | Lanes, scale: float) -> Tensor:
    """Attention of R rows: query [R, heads, d], their own keys and values [R, 2 * kv_heads, d].

    `layer` [2 * kv_heads, slots, d] holds keys, then values, this forward's rows included.
    Returns [R, heads * d].
    """
    if isinstance(rows, Lanes):
        return rows.kernel(query, layer, rows, scale)
    num_rows, num_heads, dim = query.shape
    num_kv = fresh.shape[1] // 2
    query = query.reshape(num_rows, num_kv, num_heads // num_kv, dim)
    key, value = fresh.unsqueeze(2).split(num_kv, 1)
    parts = [_look_back(query[look.start : look.stop], layer, look, scale) for look in rows.looks]
    past, log_mass = parts[0]
    if len(parts) > 1:
        past = torch.cat([part[0] for part in parts])
        log_mass = torch.cat([part[1] for part in parts])
    own = (query * key).sum(-1, dtype=torch.float32)
    past_weight = _past_weight(log_mass, own, scale).to(value.dtype)
    merged = torch.lerp(value, past.to(value.dtype), past_weight.unsqueeze(-1))
    return merged.view(num_rows, num_heads * dim)


def _past_weight(log_mass: Tensor, own: Tensor, scale: float) -> Tensor:
    """sigmoid(log_mass - scale * own): what the keys before a row weigh against its own.

    The last elements of a buffer that is no multiple of the vector width take a scalar path
    with other bits, so the buffer is.
    """
    size = own.numel()
    buffer = torch.empty(round_up(size, _VECTOR), dtype=torch.float32, device=own.device)
    weight = buffer[:size].view(own.shape)
    torch.sub(log_mass, own, alpha=scale, out=weight)
    buffer.sigmoid_()
    return weight


def _look_back(query: Tensor, layer: Tensor, look: Look, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs [r, kv_heads, group, d] and log masses [r, kv_heads, group] over earlier keys."""
    num_kv = query.shape[1]
    if look.slots is None:
        seen = layer[:, look.base : look.base + look.width]
    else:
        seen = layer.index_select(1, look.slots)
    keys, values = seen.unsqueeze(0).split(num_kv, 1)
    look_at = apart if look.is_apart else together
    past, log_mass = look_at(query, keys, values, look.mask, scale)
    if look.has_first:
        # Position 0 has nothing before it: its result is its own value alone.
        past[0] = 0.0
        log_mass[0] = float("-inf")
    return past, log_mass
