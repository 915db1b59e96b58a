"""EAGLE-3 head in torch: it is trained in this form, and served heads compare with it in float32.

Parameters have the names of published weights. Pair t is the token at t + 1 and the fused states of
the target at t: it predicts the token at t + 2, and its rotary position is t.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide import GlideMlp, GlideSelfAttention, RmsNorm, Rope
from slipstream.models.glide.glide_config import EagleConfig

Past = list[tuple[Tensor, Tensor]]
"""Keys and values [B, heads, T, head_dim] of the steps so far; the first have true features."""


class EagleAttention(GlideSelfAttention):
    """Self-attention of a step: over the pairs with true features up to each row's own, and over
    the later steps of its row."""

    def forward(self, x: Tensor, rope: Rope, past: Past | None = None) -> Tensor:
        """x [B, T, 2d], normed -> [B, T, d]; this step's keys and values are added to `past`."""
        query, key, value = self.projected(x, rope)
        past = [] if past is None else past
        past.append((key, value))
        (first, values), own = past[0], past[1:]
        if not own:
            return self.joined(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        query = query * query.shape[-1] ** -0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu_(1)
        scores = (query @ first.mT).masked_fill(later, float("-inf"))
        alone = [(query * key).sum(-1, keepdim=True) for key, _ in own]
        shares = torch.cat([scores, *alone], -1).float().softmax(-1).to(values.dtype)
        out = shares[..., : x.shape[1]] @ values
        for number, (_, value) in enumerate(own, start=x.shape[1]):
            out = out + shares[..., number, None] * value
        return self.joined(out)


class EagleLayer(nn.Module):
    """The decoder layer: attention over a token and a feature, MLP; each behind its norms."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.norms_residual = config.norms_residual
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = EagleAttention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GlideMlp(config)

    def forward(self, x: Tensor, features: Tensor, rope: Rope, past: Past) -> Tensor:
        """Embeddings x and features [B, T, d] -> the features of the next step [B, T, d]."""
        normed = self.hidden_norm(features)
        both = torch.cat((self.input_layernorm(x), normed), -1)
        out = (normed if self.norms_residual else features) + self.self_attn(both, rope, past)
        result: Tensor = out + self.mlp(self.post_attention_layernorm(out))
        return result


class EagleModel(nn.Module):
    """The trained parts of the draft; embeddings stay with the target."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        count, size, eps = len(config.target_layers), config.target_hidden_size, config.rms_norm_eps
        if config.norms_states:
            self.input_norm = RmsNorm(count * size, eps)
        if config.norms_each_state:
            self.fc_norm: Any = nn.ModuleList(RmsNorm(size, eps) for _ in range(count))
        self.fc = nn.Linear(count * size, config.hidden_size, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = RmsNorm(config.hidden_size, eps)
        self.lm_head = nn.Linear(config.hidden_size, config.head_size, bias=False)

    def fused(self, states: Tensor) -> Tensor:
        """States of the target's layers side by side [..., layers * target d] -> [..., d]."""
        if self.config.norms_states:
            states = self.input_norm(states)
        if self.config.norms_each_state:
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1
            )
        result: Tensor = self.fc(states)
        return result

    def forward(self, x: Tensor, states: Tensor, rope: Rope, steps: int) -> tuple[Tensor, Tensor]:
        """Return what each of `steps` steps gives, [steps, B, T, d]: the states that `lm_head`
        reads, and the features for the step after it.

        x [B, T, d]: embeddings of the tokens; states [B, T, layers * target d]; rope of T + steps
        positions. Row t of step i is a chain that began with pair t: it reads the token at
        t + 1 + i, its own feature of the step before, all pairs up to t with true features, and
        its own pairs since. Rows whose token lies behind the end read zeros.
        """
        features, length, past = self.fused(states), x.shape[1], Past()
        outputs: list[Tensor] = []
        carried: list[Tensor] = []
        for step in range(steps):
            x = F.pad(x[:, 1:], (0, 0, 0, 1))
            places = slice(step, step + length)
            features = self.midlayer(x, features, Rope(rope.cos[places], rope.sin[places]), past)
            outputs.append(self.norm(features))
            features = outputs[-1] if self.config.norms_output else features
            carried.append(features)
        return torch.stack(outputs), torch.stack(carried)
