"""Quality of a decision model on held-out prompts: figures, a file and a plot.

It is compared with the draft's top-1 probability as it is, with the same calibrated on the training
prompts, and with SVIP's bound.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.core.policy.stop import SVIP_SLOPE
from slipstream.models.decision import GREEDY, SAMPLED, DecisionModel
from slipstream.plots import save_plot
from slipstream.train.data import write_json
from slipstream.train.records import Records

NUM_BINS = 10
_EPS = 1e-4
DECISION, CONFIDENCE, CALIBRATED, SVIP = "decision", "confidence", "calibrated", "svip bound"
_MODES = {"greedy": GREEDY, "sampled": SAMPLED}


@dataclass(frozen=True, slots=True)
class Figures:
    """Negative log-likelihood in nats (probabilities kept 1e-4 from 0 and 1), Brier score, area
    under the ROC curve (None where all or none was accepted), expected calibration error."""

    nll: float
    brier: float
    auc: float | None
    ece: float


def figures(probs: Tensor, accepted: Tensor) -> Figures:
    """Return the figures of probabilities [n] and outcomes, [n] bool."""
    came_true = accepted.double()
    brier = float((probs.double() - came_true).square().mean())
    bins = reliability(probs, accepted)
    ece = sum(share * abs(mean - rate) for mean, rate, share in bins)
    return Figures(float(losses(probs, accepted).mean()), brier, auc(probs, accepted), ece)


def losses(probs: Tensor, accepted: Tensor) -> Tensor:
    """Return the negative log-likelihood of each outcome, [n] float64."""
    safe = probs.double().clamp(_EPS, 1 - _EPS)
    return -torch.where(accepted, safe, 1 - safe).log()


def auc(probs: Tensor, accepted: Tensor) -> float | None:
    """Return the probability that an accepted token has the higher rating; ties are half."""
    num_true = int(accepted.sum())
    num_false = len(accepted) - num_true
    if not num_true or not num_false:
        return None
    probs = probs.contiguous()
    ordered = probs.sort().values
    below = torch.searchsorted(ordered, probs)
    upto = torch.searchsorted(ordered, probs, right=True)
    ranks = (below + upto + 1).double() / 2
    wins = float(ranks[accepted].sum()) - num_true * (num_true + 1) / 2
    return wins / (num_true * num_false)


def reliability(probs: Tensor, accepted: Tensor) -> list[tuple[float, float, float]]:
    """Return (mean probability, share accepted, share of all) of each tenth that has a token."""
    index = (probs.double() * NUM_BINS).long().clamp(0, NUM_BINS - 1)
    out = []
    for number in range(NUM_BINS):
        inside = index == number
        count = int(inside.sum())
        if count:
            mean = float(probs[inside].double().mean())
            rate = float(accepted[inside].double().mean())
            out.append((mean, rate, count / len(probs)))
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
    """Return the rising function of the score that fits best (pool adjacent violators).

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
    """Return SVIP's lower bound on acceptance, 1 - sqrt(c H), at least 0 (section 2.2)."""
    return (1 - (SVIP_SLOPE * entropy.clamp_min(0)).sqrt()).clamp_min(0)


@dataclass(frozen=True, slots=True)
class LikelihoodGain:
    """Nats per token by which one estimate's log-likelihood exceeds another's, and the standard
    error of that, prompts being what was sampled."""

    nats: float
    error: float

    @property
    def is_better(self) -> bool:
        """Return whether the gain exceeds its standard error."""
        return self.nats > self.error


def gain(ours: Tensor, theirs: Tensor, accepted: Tensor, prompt: Tensor) -> LikelihoodGain:
    """Return the gain of probabilities `ours` over `theirs`, [n] all."""
    each = losses(theirs, accepted) - losses(ours, accepted)
    mean = each.mean()
    _, index = prompt.unique(return_inverse=True)
    sums = torch.zeros(int(index.max()) + 1, dtype=each.dtype).index_add_(0, index, each - mean)
    return LikelihoodGain(float(mean), float(sums.square().sum().sqrt()) / len(each))


@dataclass(frozen=True, slots=True)
class ModeReport:
    """Greedy or sampled rounds: how many tokens, the share accepted, figures per estimate, the
    decision model's gain over calibrated confidence, and its reliability and the confidence's."""

    num_tokens: int
    acceptance: float
    figures: Mapping[str, Figures]
    gain: LikelihoodGain
    curves: Mapping[str, list[tuple[float, float, float]]]


@dataclass(frozen=True, slots=True)
class DecisionReport:
    """Reports of each mode, and the gain over calibrated confidence on both together."""

    modes: Mapping[str, ModeReport]
    gain: LikelihoodGain

    @property
    def verdict(self) -> str:
        """Return better or not better, by the gain on both modes together."""
        return "better" if self.gain.is_better else "not better"

    def facts(self) -> dict[str, Any]:
        """Return the report as plain values for a file."""
        return {"verdict": self.verdict, **asdict(self)}


def make_report(model: DecisionModel, train: Records, held: Records) -> DecisionReport:
    """Judge the model on `held`, with the confidence calibrated on `train`."""
    modes: dict[str, ModeReport] = {}
    estimates: dict[str, dict[str, Tensor]] = {}
    parts: list[Records] = []
    for name, column in _MODES.items():
        is_mode = column == GREEDY
        seen = train.rows(train.is_greedy == is_mode)
        rows = held.rows(held.is_greedy == is_mode)
        if len(rows) and len(seen):
            estimates[name] = _estimates(model, column, seen, rows)
            modes[name] = _mode(estimates[name], rows)
            parts.append(rows)
    ours, theirs = (
        torch.cat([probs[name] for probs in estimates.values()]) for name in (DECISION, CALIBRATED)
    )
    accepted, prompt = (torch.cat([getattr(p, c) for p in parts]) for c in ("accepted", "prompt"))
    return DecisionReport(modes, gain(ours, theirs, accepted, prompt))


def _estimates(
    model: DecisionModel, column: int, seen: Records, rows: Records
) -> dict[str, Tensor]:
    confidence = rows.confidence
    scores = model.score(rows.hidden.float().numpy(), rows.stats.numpy())
    return {
        DECISION: torch.from_numpy(scores[:, column]),
        CONFIDENCE: confidence,
        CALIBRATED: isotonic(seen.confidence, seen.accepted)(confidence),
        SVIP: svip_bound(rows.stats[:, 1]),
    }


def _mode(probs: Mapping[str, Tensor], rows: Records) -> ModeReport:
    accepted = rows.accepted
    return ModeReport(
        len(rows),
        float(accepted.double().mean()),
        {name: figures(values, accepted) for name, values in probs.items()},
        gain(probs[DECISION], probs[CALIBRATED], accepted, rows.prompt),
        {name: reliability(probs[name], accepted) for name in (DECISION, CONFIDENCE)},
    )


def write_report(report: DecisionReport, path: Path) -> None:
    """Write the report as JSON, whole or not at all, and its plot beside it as PNG."""
    write_json(path, report.facts())

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="perfect")
        for name, mode in report.modes.items():
            for estimate, points in mode.curves.items():
                estimated, rate, _ = zip(*points, strict=True)
                style = "-o" if estimate == DECISION else "--s"
                axes.plot(estimated, rate, style, label=f"{estimate}, {name}")

    save_plot(
        path.with_suffix(".png"),
        draw,
        title="Probability of acceptance: estimated and measured",
        x="estimated probability",
        y="share accepted",
    )
