"""An EAGLE-3 head's pass in torch, with features in and out: see `glide_torch.TorchDraft`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.models.cuda.graphs import sent
from slipstream.models.cuda.layers import Stream, added, read_states
from slipstream.models.eagle.eagle import EagleModel
from slipstream.models.eagle.eagle_weights import EMBEDDING, EagleWeights
from slipstream.models.format.rope import rotary_tables
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.glide_torch import (
    Attended,
    DraftTokens,
    TorchDraft,
    TorchGlide,
    TorchLayer,
)
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.target_parts import TargetParts
from slipstream.models.glide.torch_parts import rope_of, table_of
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.torch.arrays import as_tensor
from slipstream.models.torch.choice import load_kernels


class TorchEagle(TorchDraft):
    """The layer of a head, over its own keys and the target's hidden states."""

    def __init__(
        self, weights: EagleWeights, target: TargetParts, layout: KvLayout, *, is_scaled: bool
    ) -> None:
        tensors, model = weights.tensors, _modules(weights)
        own = as_tensor(tensors[EMBEDDING]) if EMBEDDING in tensors else table_of(target)
        parts = (as_tensor(weights.vocab), own, model.lm_head.weight)
        del model.lm_head  # which is no linear layer of the pass
        super().__init__(model, layout, parts, is_scaled=is_scaled)
        layer, self._config, self._fuse = model.midlayer, weights.config, model.fused
        self._input_norm, self.num_features = layer.input_layernorm, weights.config.hidden_size
        self.layers = [TorchLayer(layer, (layer.hidden_norm, layer.post_attention_layernorm))]
        del model.midlayer  # whose products are one now

    def rope(self, length: int) -> Rope:
        return rope_of(rotary_tables(self._config.rotary, length), self.embeddings)

    @torch.inference_mode()
    def fused(self, states: Sequence[Any], slots: Sequence[int]) -> Tensor:
        if not states:
            return self.embeddings.new_zeros(1, self.num_features)
        buffers = [as_tensor(own) for own in states]
        places = sent(torch.tensor(slots), buffers[0].device)
        rows = [own.index_select(1, places).transpose(0, 1).flatten(1) for own in buffers]
        return self._fuse(torch.cat(rows, 1).to(self.embeddings))

    def joined(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(rows))

    def features(self, others: Tensor, slots: Tensor, given: Tensor) -> Tensor:
        size, (sessions, width) = self._config.target_hidden_size, given.shape
        found = self._fuse(read_states(self.embeddings, others, slots, size))
        is_given = slots.view(sessions, -1, 1) < 0
        return torch.where(is_given, given[:, None], found.view(sessions, -1, width)).flatten(0, 1)

    def states(self, pool: KvPool, tokens: DraftTokens, passes: Sequence[Attended]) -> Stream:
        (layer,), config, features = self.layers, self._config, tokens.features
        assert features is not None, "EAGLE's tokens have features"
        _, beside = added(self._input_norm, self.embeddings[tokens.ids][None])
        x, normed = added(layer.first, features[None])
        entered = [normed if config.norms_residual else x, torch.cat([beside, normed], 1)]
        stream = layer(entered, pool.layer(0), tokens, passes[-1])
        given, hidden = added(self._norm, stream)
        return (hidden if config.norms_output else given), hidden


def torch_draft(
    weights: GlideWeights | EagleWeights, target: TargetParts, layout: KvLayout, *, is_scaled: bool
) -> TorchDraft:
    """Return a draft as torch computes it. Raises what `load_kernels` raises."""
    load_kernels(layout.device)
    if isinstance(weights, EagleWeights):
        return TorchEagle(weights, target, layout, is_scaled=is_scaled)
    return TorchGlide(weights, target, layout, is_scaled=is_scaled)


def _modules(weights: EagleWeights) -> EagleModel:
    with torch.device("meta"):
        model = EagleModel(weights.config)
        for name in ("fc", "midlayer.self_attn.o_proj"):
            if f"{name}.bias" in weights.tensors:
                bias = nn.Parameter(torch.empty(weights.config.hidden_size))
                model.get_submodule(name).register_parameter("bias", bias)
    tensors = {name: as_tensor(own) for name, own in weights.tensors.items() if name != EMBEDDING}
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()
