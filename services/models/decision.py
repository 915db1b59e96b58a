"""The decision model: the probability that a token is accepted, from a draft's state and scores.

After DynaSD's "soft" model ("Improving Multi-Candidate Speculative Decoding"), which reads the
state behind the draft's final norm. This one starts from the draft's confidence and learns what
to correct. It reads a position's distribution, never which token was taken.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.core.errors import WeightsError
from slipstream.models.glide.glide_config import WEIGHTS_NAME
from slipstream.models.glide.glide_files import read_tensors, write_tensors

DECISION_NAME = "decision.safetensors"
NUM_STATS = 4
GREEDY, SAMPLED = 0, 1
"""Columns of the probabilities: at temperature 0, and above."""
LEAST = torch.finfo(torch.float32).min
"""Stands for the logarithm of 0 in an entropy, where 0 times -inf would be no number."""

_EPS = 1e-6
_MOST = -math.log(_EPS)
_DRAFT_KEY = "draft"


class DecisionModel(nn.Module):
    """A logistic model of statistics and hidden state, corrected by a layer of `width` units.

    Untrained, it takes the draft's top-1 probability at its word. The first layer's last two rows
    are the logistic model's, so that a draft step pays for three small products only.
    """

    def __init__(self, hidden_size: int, width: int = 32) -> None:
        super().__init__()
        if min(hidden_size, width) < 1:
            raise WeightsError(f"hidden_size {hidden_size} and width {width} must be 1 or more")
        self.width = width
        self.hidden = nn.Linear(hidden_size, width + 2)
        self.stats = nn.Linear(NUM_STATS, width + 2, bias=False)
        self.out = nn.Linear(width, 2, bias=False)
        nn.init.zeros_(self.out.weight)
        with torch.no_grad():
            self.hidden.weight[width:] = 0
        self.set_base(torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2), torch.zeros(2))

    @torch.no_grad()
    def set_base(self, weight: Tensor, bias: Tensor) -> None:
        """Set the logistic model's weights [2, 4] of the statistics, and its bias [2]."""
        self.stats.weight[self.width :] = weight
        self.hidden.bias[self.width :] = bias

    def forward(self, hidden: Tensor, stats: Tensor) -> Tensor:
        """Hidden states [R, d], statistics [R, 4] as in `score` -> logits [R, 2]."""
        first = F.linear(hidden.to(self.hidden.weight.dtype), self.hidden.weight, self.hidden.bias)
        first = torch.addmm(first, stats, self.stats.weight.t())
        units, base = first.split((self.width, 2), -1)
        return torch.addmm(base, units.relu(), self.out.weight.t())

    @torch.inference_mode()
    def score(self, hidden: Tensor, stats: Tensor) -> Tensor:
        """Chances of acceptance [R, 2], float32 within 0..1, at temperature 0 and above it.

        hidden [R, d]; stats [R, 4] float32, each row as `slot_stats` makes it.
        """
        return self.forward(hidden, stats).sigmoid()


def slot_stats(log_probs: Sequence[float], entropy: float, lag: int) -> tuple[float, ...]:
    """Return the statistics of a position: log-odds of the likeliest token, entropy in nats,
    the log-ratio of the two likeliest, and the distance to the newest target key.

    `log_probs` are those of the two likeliest tokens, at temperature 1. Beyond one in a million
    all odds are the same.
    """
    best, second = log_probs
    odds = best - math.log(max(-math.expm1(best), _EPS))
    return min(odds, _MOST), entropy, min(best - second, _MOST), float(lag)


def device_stats(log_probs: Tensor, entropies: Tensor, lags: Tensor) -> Tensor:
    """`slot_stats` of R slots [R, 4] on their device: of the two likeliest [R, 2], entropies [R]
    and lags [R]."""
    best, second = log_probs.double().unbind(1)
    odds = best - torch.log((-torch.expm1(best)).clamp(min=_EPS))
    ratio = (best - second).clamp(max=_MOST)
    columns = [odds.clamp(max=_MOST), entropies.double(), ratio, lags.double()]
    return torch.stack(columns, 1).float()


def draft_digest(directory: Path) -> Tensor:
    """SHA-256 of the draft's weights in `directory`, uint8 [32]; WeightsError when missing."""
    try:
        with (directory / WEIGHTS_NAME).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise WeightsError(f"{directory} holds no draft to read: {error}") from None
    return torch.tensor(list(digest), dtype=torch.uint8)


def save_decision(model: DecisionModel, directory: Path) -> None:
    """Write the weights beside the draft's in `directory`, in float32, whole or not at all."""
    tensors = {name: value.detach().float() for name, value in model.state_dict().items()}
    tensors[_DRAFT_KEY] = draft_digest(directory)
    write_tensors(tensors, directory / DECISION_NAME)


def load_decision(directory: Path, *, hidden_size: int) -> DecisionModel | None:
    """The decision model beside the draft of `hidden_size` in `directory`; None without one.

    WeightsError when its file is broken or was trained for other weights of the draft.
    """
    path = directory / DECISION_NAME
    if not path.exists():
        return None
    tensors = read_tensors(path)
    digest = tensors.pop(_DRAFT_KEY, None)
    bias = tensors.get("hidden.bias")
    if digest is None or bias is None or bias.ndim != 1:
        names = ", ".join(sorted(tensors)) or "empty"
        raise WeightsError(f"{path} holds no decision model: {names}")
    model = DecisionModel(hidden_size, max(len(bias) - 2, 1))
    wanted = model.state_dict()
    odd = sorted(set(tensors) ^ set(wanted))
    odd += [name for name in wanted.keys() & tensors if wanted[name].shape != tensors[name].shape]
    if odd:
        raise WeightsError(f"{path} does not fit a draft of width {hidden_size}: {', '.join(odd)}")
    if not torch.equal(digest, draft_digest(directory)):
        raise WeightsError(
            f"{path} was trained for other weights of this draft: run `slipstream train decision`"
            " again, or delete it"
        )
    model.load_state_dict(tensors)
    return model.requires_grad_(False).eval()
