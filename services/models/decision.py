"""DynaSD's decision model: from a draft's hidden state to the chance that its token is accepted.

"Improving Multi-Candidate Speculative Decoding", the "soft" variant: a small MLP on the state
behind the draft's final norm, trained on acceptance probabilities. Knows nothing of thresholds.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.core.errors import WeightsError
from slipstream.models.glide_weights import read_tensors, write_tensors

DECISION_NAME = "decision.safetensors"


class DecisionModel(nn.Module):
    """Linear layers of the given widths with ReLU between, then one logit.

    widths: the draft's hidden size, then the widths of the hidden layers.
    """

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        if len(widths) < 2 or min(widths) < 1:
            raise WeightsError(f"widths {widths} must hold an input and a hidden width, 1 or more")
        outs = (*widths[1:], 1)
        pairs = zip(widths, outs, strict=True)
        # Any: a ModuleList forgets what its elements are.
        self.layers: Any = nn.ModuleList(nn.Linear(width, out) for width, out in pairs)
        self.widths = widths

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., d] -> logits [...]."""
        x = hidden.to(self.layers[0].weight.dtype)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        logits: Tensor = self.layers[-1](x)
        return logits[..., 0]

    @torch.inference_mode()
    def score(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, d] -> chances of acceptance [R], float32 within 0..1."""
        return torch.sigmoid(self(hidden).float())


def save_decision(model: DecisionModel, path: Path) -> None:
    """Write the weights in float32, whole or not at all."""
    tensors = {name: value.detach().float() for name, value in model.layers.state_dict().items()}
    write_tensors(tensors, path)


def load_decision(path: Path, *, hidden_size: int) -> DecisionModel:
    """Read weights for a draft of `hidden_size`; WeightsError when they are broken or differ."""
    tensors = read_tensors(path)
    depth = len(tensors) // 2
    names = {f"{index}.{part}" for index in range(depth) for part in ("weight", "bias")}
    if depth < 2 or set(tensors) != names:
        raise WeightsError(
            f"{path} holds no decision model: {', '.join(sorted(tensors)) or 'empty'}"
        )
    weights = [tensors[f"{index}.weight"] for index in range(depth)]
    if weights[0].shape[-1] != hidden_size:
        raise WeightsError(
            f"{path} reads states of width {weights[0].shape[-1]}, the draft's are {hidden_size}"
        )
    model = DecisionModel(tuple(int(weight.shape[-1]) for weight in weights))
    wanted = model.layers.state_dict()
    odd = sorted(name for name in wanted if wanted[name].shape != tensors[name].shape)
    if odd:
        raise WeightsError(f"the layers in {path} do not fit each other: {', '.join(odd)}")
    model.layers.load_state_dict(tensors)
    return model.requires_grad_(False).eval()
