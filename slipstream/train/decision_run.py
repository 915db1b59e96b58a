"""A decision model from prompt files to weights: record rounds, train, compare, write.

Progress goes out through a callback.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from slipstream.client.engine import Engine, EngineOptions
from slipstream.core.errors import TrainingError
from slipstream.core.policy.profile import Profile
from slipstream.core.policy.stop import fit_calibration
from slipstream.core.types import SamplingParams
from slipstream.models.decision import DECISION_NAME, GREEDY, SAMPLED, DecisionModel, save_decision
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.options import Bounded, group, option, required
from slipstream.revision import code_revision
from slipstream.text.prompts import encode_prompt
from slipstream.train.data import ReadLimits, read_data
from slipstream.train.decision import DecisionSettings, train_decision
from slipstream.train.provenance import write_provenance
from slipstream.train.rounds import Position, Records, RoundRecorder, records_of

PROVENANCE_NAME = "decision.provenance.json"
_EPS = 1e-4
Clock = Callable[[], float]
Progress = Callable[[int, int], None]
"""Called with (prompts recorded, prompts in all)."""


@dataclass(frozen=True, slots=True)
class RecordingPlan(Bounded):
    """Extent of recording: each prompt is answered greedily and at temperature 1."""

    num_prompts: int = option(120, "Prompts to decode.", min=10)
    max_tokens: int = option(64, "Longest answer, of which each prompt has two.", min=2)
    depth: int | None = option(
        None, "Tokens drafted per round; default: the most that the draft can."
    )
    minutes: float | None = option(None, "Begin no prompt after so many minutes.", above=0)
    seed: int = option(0, "Seed of the sampled answers.", min=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRun:
    """Models and data of a run; the decision model goes beside the draft's weights."""

    target: str = required("Target model: an alias, a path or a hub id.")
    data: tuple[Path, ...] = required(
        "JSON lines of prompts that the draft was not trained on; repeatable."
    )
    draft: str = option("glide", "glide (the shipped one), eagle3:HEAD or a directory; written to.")
    threads: int | None = option(None, "CPU threads.", min=1)
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    recording: RecordingPlan = group(RecordingPlan)
    settings: DecisionSettings = group(DecisionSettings)
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """Mean negative log-likelihoods in nats, of held-out tokens, by the decision model and by the
    draft's calibrated confidence; `weights` is None where the model is not better."""

    num_tokens: int
    loss: float
    calibrated_loss: float
    weights: Path | None = None


def run_decision(run: DecisionRun, *, clock: Clock, progress: Progress) -> DecisionOutcome:
    """Record, train and compare. Weights are written only if they are better than calibrated
    confidence on the held-out prompts."""
    plan = run.recording
    deadline = None if plan.minutes is None else clock() + 60 * plan.minutes
    options = EngineOptions(numerics="fast", threads=run.threads, device=run.device)
    engine = Engine.load(run.target, options, draft=run.draft)
    found = engine.draft_model(run.draft)
    folder, scorer = found.folder, found.scorer
    if folder is None or not isinstance(scorer, GlideScorer):
        raise TrainingError(f"the draft is {run.draft}, which has no place for a decision model")
    limits, encode = ReadLimits(engine.facts.vocab_size), partial(encode_prompt, engine.text)
    files = [read_data(path, limits, encode=encode) for path in run.data]
    # Every prompt once, in an order independent of the files'.
    by_key = {d.key: d.ids[: d.num_prompt].tolist() for data in files for d in data.documents}
    prompts = [by_key[key] for key in sorted(by_key)][: plan.num_prompts]
    most = Profile().max_depth
    recorder = RoundRecorder(engine, scorer, depth=plan.depth or min(scorer.max_lag or most, most))
    positions: list[Position] = []
    for number, prompt in enumerate(prompts):
        if deadline is not None and clock() > deadline:
            break
        samplings = [SamplingParams(temperature=t, seed=plan.seed + number) for t in (0.0, 1.0)]
        positions += recorder.record(prompt, samplings, max_tokens=plan.max_tokens, number=number)
        progress(number + 1, len(prompts))
    outcome, model = judged(records_of(positions), replace(run.settings, seed=plan.seed))
    if not outcome.loss < outcome.calibrated_loss:
        return outcome
    save_decision(model, folder)
    facts = {
        **{name: asdict(of) for name, of in (("recording", plan), ("settings", run.settings))},
        "num_tokens": outcome.num_tokens,
        "loss": outcome.loss,
        "calibrated_loss": outcome.calibrated_loss,
    }
    place, revision = folder / PROVENANCE_NAME, code_revision()
    write_provenance(place, files, command=run.command, revision=revision, facts=facts)
    return replace(outcome, weights=folder / DECISION_NAME)


def judged(records: Records, settings: DecisionSettings) -> tuple[DecisionOutcome, DecisionModel]:
    """Return a model trained on seven of ten prompts, and how it does on the other three."""
    train, validation, held = split(records)
    model = train_decision(train, validation, settings)
    scores = torch.from_numpy(model.score(held.hidden.float().numpy(), held.stats.numpy()))
    own = torch.where(held.is_greedy, scores[:, GREEDY], scores[:, SAMPLED])
    theirs = calibrated(records.rows(records.prompt % 10 >= 3), held)
    own_loss, loss = (float(log_losses(probs, held.accepted).mean()) for probs in (own, theirs))
    return DecisionOutcome(len(held), own_loss, loss), model


def calibrated(seen: Records, held: Records) -> Tensor:
    """Return acceptance by the draft's confidence, [N], calibrated on `seen`, greedy and sampled
    rounds apart."""
    estimates = held.confidence.clone()
    for is_greedy in (True, False):
        known = seen.rows(seen.is_greedy == is_greedy)
        pairs = zip(known.confidence.tolist(), known.accepted.tolist(), strict=True)
        fit, rows = fit_calibration(pairs), held.is_greedy == is_greedy
        points = [fit.probability(confidence) for confidence in held.confidence[rows].tolist()]
        estimates[rows] = torch.tensor(points, dtype=estimates.dtype)
    return estimates


def split(records: Records) -> tuple[Records, Records, Records]:
    """Return records to train on, to stop by, to report on: 5, 2 and 3 of 10 prompts in turn."""
    digit = records.prompt % 10
    chosen = digit >= 5, (digit == 3) | (digit == 4), digit < 3
    train, validation, held = map(records.rows, chosen)
    if not (len(train) and len(validation) and len(held)):
        raise TrainingError(
            f"{len(records)} drafted tokens of {len(records.prompt.unique())} prompts are too few"
            " to train on some and hold others out: record at least 10 prompts"
        )
    return train, validation, held


def log_losses(probs: Tensor, accepted: Tensor) -> Tensor:
    """Return the negative log-likelihood of each outcome, [n] float64."""
    safe = probs.double().clamp(_EPS, 1 - _EPS)
    return -torch.where(accepted, safe, 1 - safe).log()
