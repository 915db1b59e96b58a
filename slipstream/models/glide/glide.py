"""GliDe: a small decoder that reads the target's cached keys and values.

GliDe with a CaPE (ICML 2024), section 4.1, with three departures: each draft layer reads a
configured list of target layers, one cross-attention sublayer each; the query is rotated with
the target's own rotary parameters; and a pre-norm stands on the query path, because each
query projection starts from the target layer it reads, which was trained behind such a norm.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide_config import EagleConfig, GlideConfig


class Rope(NamedTuple):
    """cos and sin of the T positions at hand, each [T, rotary_dim]."""

    cos: Tensor
    sin: Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves convention; x [..., T, head_dim], cos and sin [T, rotary_dim].

    Dimensions beyond rotary_dim pass unchanged (partial rotary).
    """
    width = cos.shape[-1]
    part, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    low, high = part.chunk(2, dim=-1)
    turned = part * cos + torch.cat((-high, low), dim=-1) * sin
    return turned if rest is None else torch.cat((turned, rest), dim=-1)


class RmsNorm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and dtype."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class GlideSelfAttention(nn.Module):
    """Plain causal self-attention with grouped keys and values."""

    def __init__(self, config: GlideConfig | EagleConfig, inputs: int) -> None:
        super().__init__()
        width, bias = config.head_dim, config.attention_bias
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.q_proj = nn.Linear(inputs, config.num_heads * width, bias=bias)
        self.k_proj = nn.Linear(inputs, config.num_kv_heads * width, bias=bias)
        self.v_proj = nn.Linear(inputs, config.num_kv_heads * width, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * width, config.hidden_size, bias=False)
        self.q_norm = RmsNorm(width, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RmsNorm(width, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """x [B, T, inputs], normed -> [B, T, d]."""
        query, key, value = self.projected(x, rope)
        return self.joined(F.scaled_dot_product_attention(query, key, value, is_causal=True))

    def projected(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, inputs] -> queries, keys and values [B, heads, T, head_dim], rotated."""
        query = _heads(self.q_proj(x), self.num_heads)
        key = _heads(self.k_proj(x), self.num_kv_heads)
        value = _heads(self.v_proj(x), self.num_kv_heads)
        query = rotate(query if self.q_norm is None else self.q_norm(query), *rope)
        key = rotate(key if self.k_norm is None else self.k_norm(key), *rope)
        repeats = self.num_heads // self.num_kv_heads
        return query, _repeat(key, repeats), _repeat(value, repeats)

    def joined(self, out: Tensor) -> Tensor:
        """Attention's output [B, heads, T, head_dim] -> [B, T, d]."""
        result: Tensor = self.o_proj(_merge(out))
        return result


class GlideCrossAttention(nn.Module):
    """Attention over one target layer's raw keys and values; own query and output only."""

    def __init__(self, config: GlideConfig) -> None:
        super().__init__()
        width = config.num_heads * config.head_dim
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, kv: tuple[Tensor, Tensor], rope: Rope, mask: Tensor) -> Tensor:
        """x [B, T, d]; kv [B, kv_heads, S, head_dim] each; mask [B, 1, T, S], added to scores."""
        query = _heads(self.q_proj(self.norm(x)), self.num_heads)
        query = rotate(query if self.q_norm is None else self.q_norm(query), *rope)
        repeats = self.num_heads // self.num_kv_heads
        key, value = (_repeat(part.to(query.dtype), repeats) for part in kv)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.to(query.dtype))
        result: Tensor = self.o_proj(_merge(out))
        return result


class GlideMlp(nn.Module):
    """Gated MLP with SiLU."""

    def __init__(self, config: GlideConfig | EagleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> [..., d]."""
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class GlideLayer(nn.Module):
    """Self-attention, one cross-attention per target layer, MLP; each behind its norm."""

    def __init__(self, config: GlideConfig) -> None:
        super().__init__()
        self.self_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = GlideSelfAttention(config, config.hidden_size)
        # Any: a ModuleList forgets what its elements are.
        self.cross: Any = nn.ModuleList(GlideCrossAttention(config) for _ in config.target_layers)
        self.mlp_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GlideMlp(config)

    def forward(
        self, x: Tensor, kvs: Sequence[tuple[Tensor, Tensor]], rope: Rope, mask: Tensor
    ) -> Tensor:
        """x [B, T, d]; kvs in the order of `target_layers` -> [B, T, d]."""
        x = x + self.self_attn(self.self_norm(x), rope)
        for cross, kv in zip(self.cross, kvs, strict=True):
            x = x + cross(x, kv, rope, mask)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class GlideModel(nn.Module):
    """The trained part of the draft; embeddings and head stay with the target."""

    def __init__(self, config: GlideConfig) -> None:
        super().__init__()
        self.config = config
        self.layers: Any = nn.ModuleList(GlideLayer(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, kvs: Sequence[tuple[Tensor, Tensor]], rope: Rope, mask: Tensor
    ) -> Tensor:
        """Embeddings x [B, T, d] -> final-normed states [B, T, d].

        kvs: per target layer keys and values [B, kv_heads, S, head_dim], keys post-rotary;
        mask: [B, 1, T, S] added to the cross-attention scores (0 or -inf).
        """
        for layer in self.layers:
            x = layer(x, kvs, rope, mask)
        result: Tensor = self.norm(x)
        return result


def _heads(x: Tensor, count: int) -> Tensor:
    return x.view(*x.shape[:-1], count, -1).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)


def _repeat(x: Tensor, times: int) -> Tensor:
    return x if times == 1 else x.repeat_interleave(times, dim=1)
