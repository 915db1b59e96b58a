"""How good estimated chances of acceptance are: figures of merit, and what to compare them with.

Pure; knows nothing of drafts, models or files.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.stop import SVIP_SLOPE

NUM_BINS = 10
_EPS = 1e-4


@dataclass(frozen=True, slots=True)
class Figures:
    """Negative log-likelihood in nats (chances kept 1e-4 away from 0 and 1), Brier score, area
    under the ROC curve (None where all or none was accepted), expected calibration error."""

    nll: float
    brier: float
    auc: float | None
    ece: float


def figures(chances: Tensor, accepted: Tensor) -> Figures:
    """Of chances [n] and what came true, [n] bool."""
    came_true = accepted.double()
    brier = float((chances.double() - came_true).square().mean())
    bins = reliability(chances, accepted)
    ece = sum(share * abs(said - rate) for said, rate, share in bins)
    return Figures(float(losses(chances, accepted).mean()), brier, auc(chances, accepted), ece)


def losses(chances: Tensor, accepted: Tensor) -> Tensor:
    """Negative log-likelihood of each outcome, [n] float64."""
    safe = chances.double().clamp(_EPS, 1 - _EPS)
    return -torch.where(accepted, safe, 1 - safe).log()


def auc(chances: Tensor, accepted: Tensor) -> float | None:
    """The chance that an accepted token was rated above a rejected one, ties counting half."""
    num_true = int(accepted.sum())
    num_false = len(accepted) - num_true
    if not num_true or not num_false:
        return None
    chances = chances.contiguous()
    ordered = chances.sort().values
    below = torch.searchsorted(ordered, chances)
    upto = torch.searchsorted(ordered, chances, right=True)
    ranks = (below + upto + 1).double() / 2
    wins = float(ranks[accepted].sum()) - num_true * (num_true + 1) / 2
    return wins / (num_true * num_false)


def reliability(chances: Tensor, accepted: Tensor) -> list[tuple[float, float, float]]:
    """(mean chance, share accepted, share of all) of each of ten equal intervals with a token."""
    index = (chances.double() * NUM_BINS).long().clamp(0, NUM_BINS - 1)
    out = []
    for number in range(NUM_BINS):
        inside = index == number
        count = int(inside.sum())
        if count:
            said = float(chances[inside].double().mean())
            rate = float(accepted[inside].double().mean())
            out.append((said, rate, count / len(chances)))
    return out


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A rising step function: `values[i]` from `starts[i]` on."""

    starts: Tensor
    values: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        place = torch.searchsorted(self.starts, scores.contiguous(), right=True) - 1
        return self.values[place.clamp_min(0)]


def isotonic(scores: Tensor, accepted: Tensor) -> Isotonic:
    """The rising function of the score that fits the outcomes best (pool adjacent violators).

    Each level counts one more token of the mean outcome, so that none is certain.
    """
    order = scores.argsort()
    mean = float(accepted.double().mean())
    starts, sums, counts = list[float](), list[float](), list[int]()
    pairs = zip(scores[order].tolist(), accepted[order].tolist(), strict=True)
    for score, outcome in pairs:
        starts.append(score)
        sums.append(float(outcome))
        counts.append(1)
        while len(starts) > 1 and sums[-2] * counts[-1] >= sums[-1] * counts[-2]:
            starts.pop()
            sums[-2:] = [sums[-2] + sums[-1]]
            counts[-2:] = [counts[-2] + counts[-1]]
    values = [(total + mean) / (count + 1) for total, count in zip(sums, counts, strict=True)]
    return Isotonic(torch.tensor(starts, dtype=scores.dtype), torch.tensor(values))


def svip_bound(entropy: Tensor) -> Tensor:
    """SVIP's lower bound on acceptance, 1 - sqrt(c H), and 0 where it is below (section 2.2)."""
    return (1 - (SVIP_SLOPE * entropy.clamp_min(0)).sqrt()).clamp_min(0)


@dataclass(frozen=True, slots=True)
class Gain:
    """Nats per token by which one estimate's log-likelihood exceeds another's, and the standard
    error of that, prompts being what was sampled."""

    nats: float
    error: float

    @property
    def is_better(self) -> bool:
        """Whether the gain exceeds its standard error."""
        return self.nats > self.error


def gain(ours: Tensor, theirs: Tensor, accepted: Tensor, prompt: Tensor) -> Gain:
    """Of chances `ours` over `theirs`, [n] all."""
    each = losses(theirs, accepted) - losses(ours, accepted)
    mean = each.mean()
    _, index = prompt.unique(return_inverse=True)
    sums = torch.zeros(int(index.max()) + 1, dtype=each.dtype).index_add_(0, index, each - mean)
    return Gain(float(mean), float(sums.square().sum().sqrt()) / len(each))
