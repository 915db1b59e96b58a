"""torch's private CPU operators, each used where this build and this processor have it.

That an operator exists proves nothing: oneDNN's packed product of bfloat16, for one, is there on
every x86-64 build and raises where the processor lacks AVX-512. So each is run once on a small
input and compared with torch's public operator; where it fails, callers use the public one.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_PACK_ROWS = 16
"""Row count that oneDNN is to lay a packed weight out for."""
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
_INT8_TOLERANCE = 0.05


def pack_weight(weight: Tensor) -> Tensor:
    """Lay out weight [out, in] for `packed_linear`, where `has_packed_linear` of its dtype."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
    return packed


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x [rows, in] by a weight from `pack_weight`."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def int8_linear(x: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    """Multiply x [rows, in], bfloat16, by 8-bit levels [out, in] with a scale for every output."""
    return torch._weight_int8pack_mm(x, levels, scales)


def flash_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return attention [b, heads, m, d] and the log of its softmax denominators [b, heads, m]."""
    out, mass = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, attn_mask=mask, scale=scale
    )
    return out, mass


def plain_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return what `flash_attention` does, by torch's public operators, in float32."""
    scores = (query.float() @ keys.float().transpose(-1, -2)).mul_(scale) + mask
    mass = torch.logsumexp(scores, -1)
    return torch.exp(scores - mass.unsqueeze(-1)) @ values.float(), mass


def together(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return attention of r rows [r, kv_heads, group, d], and its log masses [r, kv_heads, group].

    Keys and values are [1, kv_heads, width, d]. The rows of mask [1, 1, m * group, width] behind
    the query's own, if m is above r, are those of padding.
    """
    num_rows, num_kv, group, dim = query.shape
    padding = mask.shape[2] // group - num_rows
    if padding:
        query = torch.cat([query, query[:1].expand(padding, -1, -1, -1)])
    stacked = query.transpose(0, 1).reshape(1, num_kv, -1, dim)
    out, mass = _kernel(stacked, keys, values, mask, scale)
    past = out.view(num_kv, -1, group, dim).transpose(0, 1)[:num_rows]
    return past, mass.view(num_kv, -1, group).transpose(0, 1)[:num_rows]


def apart(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return what `together` does, every row computed on its own; mask [r, 1, group, width].

    Slower for many rows, and a row's bits can't depend on how many there are.
    """
    num_rows = len(query)
    keys, values = keys.expand(num_rows, -1, -1, -1), values.expand(num_rows, -1, -1, -1)
    return _kernel(query, keys, values, mask, scale)


def _kernel(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [b, kv, m, d] and the log of its softmax denominators [b, kv, m]."""
    has_flash = query.device.type == "cpu" and has_flash_attention(query.dtype)
    attention = flash_attention if has_flash else plain_attention
    return attention(query, keys, values, mask, scale)


@cache
def has_packed_linear(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies by weights of this dtype that were packed once."""
    x, weight = _example(4, 64, dtype), _example(32, 64, dtype)
    return _works(
        lambda: packed_linear(x, pack_weight(weight), None),
        F.linear(x, weight),
        _TOLERANCE.get(dtype, 0.0),
    )


@cache
def has_int8_linear() -> bool:
    """Return whether bfloat16 rows can be multiplied by 8-bit weights."""
    levels = torch.arange(-64, 64, dtype=torch.int8).repeat(32, 1)
    x, scales = _example(2, 128, torch.bfloat16), torch.full((32,), 0.01, dtype=torch.bfloat16)
    expected = F.linear(x.float(), levels.float() * 0.01)
    return _works(lambda: int8_linear(x, levels, scales), expected, _INT8_TOLERANCE)


@cache
def has_flash_attention(dtype: torch.dtype) -> bool:
    """Return whether torch's CPU attention that also returns softmax denominators can be called."""
    query, keys, values = (_example(count, 64, dtype)[None, None] for count in (80, 640, 640))
    mask = torch.zeros(1, 1, 80, 640, dtype=dtype)
    expected, limit = plain_attention(query, keys, values, mask, 0.1), _TOLERANCE.get(dtype, 0.0)
    return all(
        _works(
            lambda part=part: flash_attention(query, keys, values, mask, 0.1)[part],
            expected[part],
            limit,
        )
        for part in range(2)
    )


def _works(operator: Callable[..., Tensor], expected: Tensor, limit: float) -> bool:
    try:
        found = operator()
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    return bool((found.float() - expected.float()).norm() <= limit * expected.float().norm())


def _example(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    return torch.randn(rows, width, generator=noise).to(dtype)
