"""The decision model: the probability that a token is accepted, from a draft's state and scores.

After DynaSD's "soft" model ("Improving Multi-Candidate Speculative Decoding"), which reads the
state behind the draft's final norm. This one starts from the draft's confidence and learns what
to correct. It reads a position's distribution, never which token was taken; for sampled requests in
`exact` verification, the softmax of scores perturbed with the target's noise. `train/decision.py`
trains it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from slipstream.core.errors import WeightsError
from slipstream.core.verify.noise import Floats
from slipstream.files import write_whole
from slipstream.models.format.digests import file_digest
from slipstream.models.format.folder import reading, shown
from slipstream.models.glide.glide_config import WEIGHTS_NAME

DECISION_NAME = "decision.safetensors"
NUM_STATS = 4
GREEDY, SAMPLED = 0, 1
"""Columns of the probabilities: at temperature 0, and above."""
LEAST = float(np.finfo(np.float32).min)
"""Stands for the logarithm of 0 in an entropy, where 0 times -inf would be no number."""

EPS = 1e-6
MOST = -math.log(EPS)
_DRAFT_KEY = "draft"
_DIGEST_SIZE = 32


@dataclass(frozen=True, slots=True, eq=False)
class DecisionModel:
    """A logistic model of statistics and hidden state, corrected by a layer of `width` units.

    The first layer's last two rows are the logistic model's, so that a draft step pays for three
    small products only.
    """

    weights: Mapping[str, Floats]
    """hidden.weight [width + 2, d], hidden.bias [width + 2], stats.weight [width + 2, 4],
    out.weight [2, width]."""

    def score(self, hidden: Floats, stats: Floats) -> Floats:
        """Chances of acceptance [R, 2], float32 within 0..1, at temperature 0 and above it.

        hidden [R, d]; stats [R, 4] float32, each row as `slot_stats` makes it.
        """
        into, of_stats, out = (
            self.weights[f"{name}.weight"] for name in ("hidden", "stats", "out")
        )
        with np.errstate(all="ignore"):  # what is no number gives none
            # `vecdot` and not `@`, for which some libraries of linear algebra start threads.
            first = np.vecdot(hidden[:, None], into) + self.weights["hidden.bias"]
            first += np.vecdot(stats[:, None], of_stats)
            units = np.maximum(first[:, :-2], 0)
            logits = first[:, -2:] + np.vecdot(units[:, None], out)
            chances: Floats = 1 / (1 + np.exp(-logits))
        return chances


def slot_stats(log_probs: Sequence[float], entropy: float, lag: int) -> tuple[float, ...]:
    """Return the statistics of a position: log-odds of the likeliest token, entropy in nats,
    the log-ratio of the two likeliest, and the distance to the newest target key.

    `log_probs` are those of the two likeliest tokens of the row that candidates are ranked by.
    Beyond one in a million all odds are the same.
    """
    best, second = log_probs
    odds = best - math.log(max(-math.expm1(best), EPS))
    return min(odds, MOST), entropy, min(best - second, MOST), float(lag)


def draft_digest(directory: Path) -> bytes:
    """SHA-256 of the draft's weights in `directory`; WeightsError when missing."""
    path = directory / WEIGHTS_NAME
    if not path.is_file():
        raise WeightsError(f"{directory} holds no draft")
    with reading(path):
        return bytes.fromhex(file_digest(path))


def save_decision(model: DecisionModel, directory: Path) -> None:
    """Write the weights beside the draft's in `directory`, whole or not at all."""
    digest = np.frombuffer(draft_digest(directory), np.uint8)
    whole = save({**model.weights, _DRAFT_KEY: digest}, metadata={"format": "pt"})
    write_whole(directory / DECISION_NAME, whole, mode=0o644)


def load_decision(directory: Path, *, hidden_size: int) -> DecisionModel | None:
    """The decision model beside the draft of `hidden_size` in `directory`; None without one.

    WeightsError when its file is broken or was trained for other weights of the draft.
    """
    path = directory / DECISION_NAME
    if not path.exists():
        return None
    with reading(path):
        weights = load_file(path)
    width = max(weights["hidden.bias"].size - 2, 1) if "hidden.bias" in weights else 1
    shapes = {
        "hidden.weight": (width + 2, hidden_size),
        "hidden.bias": (width + 2,),
        "stats.weight": (width + 2, NUM_STATS),
        "out.weight": (2, width),
        _DRAFT_KEY: (_DIGEST_SIZE,),
    }
    odd = sorted(set(weights) ^ set(shapes))
    odd += [name for name in shapes.keys() & weights if weights[name].shape != shapes[name]]
    if odd:
        raise WeightsError(f"{path} does not fit a draft of width {hidden_size}: {shown(odd)}")
    if weights.pop(_DRAFT_KEY).tobytes() != draft_digest(directory):
        raise WeightsError(
            f"{path} was trained for other weights of this draft: run `slipstream train decision`"
            " again, or delete it"
        )
    return DecisionModel({name: own.astype(np.float32) for name, own in weights.items()})
