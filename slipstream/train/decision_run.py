"""A decision model from prompt files to weights: record rounds, train, judge, write.

Progress goes out through a callback.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import TrainingError
from slipstream.core.policy.profile import Profile
from slipstream.core.types import SamplingParams
from slipstream.drafting.build import glide_folder
from slipstream.models.decision import (
    DECISION_NAME,
    GREEDY,
    SAMPLED,
    DecisionModel,
    save_decision,
)
from slipstream.models.glide.glide_scorer import GlideScorer, load_glide
from slipstream.options import group, option, required
from slipstream.revision import code_revision
from slipstream.text.prompts import encode_prompt
from slipstream.train.data import ReadLimits, read_data
from slipstream.train.decision import DecisionSettings, train_decision
from slipstream.train.records import Records, joined
from slipstream.train.rounds import RoundRecorder
from slipstream.train.run_files import data_facts, write_provenance

PROVENANCE_NAME = "decision.provenance.json"
_EPS = 1e-4
Clock = Callable[[], float]
Progress = Callable[[int, int], None]
"""Called with (prompts recorded, prompts in all)."""


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """Extent of recording: each prompt is answered greedily and at temperature 1."""

    num_prompts: int = option(120, "Prompts to decode.", min=10)
    max_tokens: int = option(64, "Longest answer, of which each prompt has two.", min=2)
    depth: int | None = option(
        None, "Tokens drafted per round; default: the most that the draft can."
    )
    minutes: float | None = option(None, "Begin no prompt after so many minutes.")
    seed: int = option(0, "Seed of the sampled answers.", min=0)

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise TrainingError(f"minutes is {self.minutes}, it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRun:
    """Models and data of a run; the decision model goes beside the draft's weights."""

    target: str = required("Target model: an alias, a path or a hub id.")
    data: tuple[Path, ...] = required(
        "JSON lines of prompts that the draft was not trained on; repeatable."
    )
    draft: str = option("glide", "glide (the one shipped) or a directory of weights; written to.")
    threads: int | None = option(None, "CPU threads.", min=1)
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    recording: RecordingPlan = group(RecordingPlan)
    settings: DecisionSettings = group(DecisionSettings)
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionReport:
    """Estimates of acceptance on held-out tokens: mean negative log-likelihoods in nats, and what
    the decision model gains per token over calibrated confidence, with the standard error, prompts
    being what was sampled."""

    num_tokens: int
    acceptance: float
    losses: Mapping[str, float]
    gain: float
    error: float

    @property
    def is_better(self) -> bool:
        """Return whether the gain exceeds its standard error."""
        return self.gain > self.error


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """The report; `weights` is None where they are not better."""

    report: DecisionReport
    weights: Path | None


def run_decision(run: DecisionRun, *, clock: Clock, progress: Progress) -> DecisionOutcome:
    """Record, train and judge. Weights are written only if they are better than calibrated
    confidence on the held-out prompts."""
    plan = run.recording
    deadline = None if plan.minutes is None else clock() + 60 * plan.minutes
    engine = Engine.load(
        run.target, EngineOptions(numerics="fast", threads=run.threads, device=run.device)
    )
    folder = glide_folder(run.draft, engine.model_id)
    if engine.parts is None:
        raise TrainingError(f"{engine.model_id} has no rotary positions, which GliDe needs")
    scorer = load_glide(folder, engine.parts)
    limits, encode = ReadLimits(engine.facts.vocab_size), partial(encode_prompt, engine.text)
    files = [read_data(path, limits, encode=encode) for path in run.data]
    # Every prompt once, in an order independent of the files'.
    by_key = {d.key: d.ids[: d.num_prompt].tolist() for data in files for d in data.documents}
    prompts = [by_key[key] for key in sorted(by_key)][: plan.num_prompts]
    recorder = RoundRecorder(engine, scorer, depth=_depth(plan, scorer))
    parts: list[Records] = []
    for number, prompt in enumerate(prompts):
        if deadline is not None and clock() > deadline:
            break
        samplings = [SamplingParams(temperature=t, seed=plan.seed + number) for t in (0.0, 1.0)]
        parts.append(recorder.record(prompt, samplings, max_tokens=plan.max_tokens, number=number))
        progress(number + 1, len(prompts))
    report, model = judged(joined(parts), replace(run.settings, seed=plan.seed))
    if not report.is_better:
        return DecisionOutcome(report, None)
    save_decision(model, folder)
    facts = {
        "revision": code_revision(),
        "data": [data_facts(data) for data in files],
        **{name: asdict(of) for name, of in (("recording", plan), ("settings", run.settings))},
        "report": asdict(report),
    }
    write_provenance(folder / PROVENANCE_NAME, command=run.command, facts=facts)
    return DecisionOutcome(report, folder / DECISION_NAME)


def _depth(plan: RecordingPlan, scorer: GlideScorer) -> int:
    usual = Profile().max_depth
    return plan.depth or min(scorer.max_lag or usual, usual)


def judged(records: Records, settings: DecisionSettings) -> tuple[DecisionReport, DecisionModel]:
    """Return a model trained on seven of ten prompts, and how it does on the other three."""
    train, validation, held = split(records)
    model = train_decision(train, validation, settings)
    return make_report(model, joined([train, validation]), held), model


def split(records: Records) -> tuple[Records, Records, Records]:
    """Return records to train on, to stop by, to report on: 5, 2 and 3 of 10 prompts in turn."""
    digit = records.prompt % 10
    parts = (
        records.rows(digit >= 5),
        records.rows((digit == 3) | (digit == 4)),
        records.rows(digit < 3),
    )
    if not all(len(part) for part in parts):
        raise TrainingError(
            f"{len(records)} drafted tokens of {len(records.prompt.unique())} prompts are too few"
            " to train on some and hold others out: record at least 10 prompts"
        )
    return parts


def make_report(model: DecisionModel, train: Records, held: Records) -> DecisionReport:
    """Judge the model on `held`, beside the draft's confidence as it is, and calibrated on
    `train`, greedy and sampled rounds apart."""
    scores = torch.from_numpy(model.score(held.hidden.float().numpy(), held.stats.numpy()))
    calibrated = held.confidence.clone()
    for is_greedy in (True, False):
        rows, seen = held.is_greedy == is_greedy, train.rows(train.is_greedy == is_greedy)
        if len(seen):
            fit = isotonic(seen.confidence, seen.accepted)
            calibrated[rows] = _at(fit, held.confidence[rows]).to(calibrated.dtype)
    estimates = {
        "decision": torch.where(held.is_greedy, scores[:, GREEDY], scores[:, SAMPLED]),
        "confidence": held.confidence,
        "calibrated": calibrated,
    }
    losses = {name: log_losses(probs, held.accepted) for name, probs in estimates.items()}
    each = losses["calibrated"] - losses["decision"]
    _, index = held.prompt.unique(return_inverse=True)
    sums = torch.zeros(int(index.max()) + 1, dtype=each.dtype)
    sums.index_add_(0, index, each - each.mean())
    return DecisionReport(
        len(held),
        float(held.accepted.double().mean()),
        {name: float(values.mean()) for name, values in losses.items()},
        float(each.mean()),
        float(sums.square().sum().sqrt()) / len(each),
    )


def log_losses(probs: Tensor, accepted: Tensor) -> Tensor:
    """Return the negative log-likelihood of each outcome, [n] float64."""
    safe = probs.double().clamp(_EPS, 1 - _EPS)
    return -torch.where(accepted, safe, 1 - safe).log()


def isotonic(scores: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the rising step function of the score that fits best steps, and to what (pool
    adjacent violators).

    Each level counts one more token of the mean outcome, so that none is certain.
    """
    order, mean = scores.argsort(), float(accepted.double().mean())
    levels: list[tuple[float, float, int]] = []
    """Start, sum of outcomes and count of each level."""
    for score, outcome in zip(scores[order].tolist(), accepted[order].tolist(), strict=True):
        levels.append((score, float(outcome), 1))
        while len(levels) > 1 and levels[-2][1] * levels[-1][2] >= levels[-1][1] * levels[-2][2]:
            _, total, count = levels.pop()
            start, before, size = levels.pop()
            levels.append((start, before + total, size + count))
    starts = torch.tensor([start for start, _, _ in levels], dtype=scores.dtype)
    return starts, torch.tensor([(total + mean) / (count + 1) for _, total, count in levels])


def _at(fit: tuple[Tensor, Tensor], scores: Tensor) -> Tensor:
    starts, values = fit
    place = torch.searchsorted(starts, scores.contiguous(), right=True) - 1
    return values[place.clamp_min(0)]
