"""The training loop: schedule, steps, held-out checks, checkpoints, exports.

Knows nothing of files of text or of the command line; time comes in as a clock.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from slipstream.models.glide import GlideModel
from slipstream.train.checkpoint import RunState, load_checkpoint, save_checkpoint
from slipstream.train.config import Schedule, TrainSettings
from slipstream.train.data import batches
from slipstream.train.features import Batch, FeatureSet
from slipstream.train.glide import (
    Frozen,
    accepted_per_round,
    draw_masks,
    glide_loss,
    greedy_matches,
    lag_mask,
    position_weights,
    states,
)

NUM_LAGS = 7
_SCORE_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Report:
    """One line of progress: mean loss since the last one, speed, and the share of the run done."""

    step: int
    epoch: int
    loss: float
    lr: float
    tokens_per_second: float
    done: float
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """A held-out check: greedy match by lag under teacher forcing, and the accepted tokens per
    round of a chain of four that follow from it."""

    step: int
    acceptance: tuple[float, ...]
    score: float
    is_best: bool


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the loop tells the outside, and the clock (seconds) it lives by."""

    clock: Callable[[], float]
    report: Callable[[Report], None]
    check: Callable[[Check], None]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Documents with features, split, and the frozen parts of the target."""

    features: FeatureSet
    train: Sequence[int]
    heldout: Sequence[int]
    frozen: Frozen


class Trainer:
    """One run over `inputs`; `run` returns when the schedule is over."""

    def __init__(
        self, model: GlideModel, inputs: Inputs, settings: TrainSettings, *, fingerprint: str
    ) -> None:
        self.model = model
        self.state = RunState(fingerprint)
        self._inputs = inputs
        self._settings = settings
        self._optimizer = torch.optim.AdamW(
            _groups(model, settings.weight_decay), lr=settings.schedule.lr, betas=(0.9, 0.95)
        )
        documents = inputs.features.documents
        self._lengths = [len(documents[index].ids) for index in inputs.train]

    def resume(self, directory: Path) -> None:
        """Take up the checkpoint in `directory`."""
        self.state = load_checkpoint(
            directory, self.model, self._optimizer, fingerprint=self.state.fingerprint
        )

    def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        save_checkpoint(directory, self.model, self._optimizer, self.state)

    def run(self, hooks: Hooks) -> None:
        """Train to the end of the schedule, checking as often as the settings say."""
        state, settings = self.state, self._settings
        begun = hooks.clock() - state.elapsed_seconds
        meter, checked = _Meter(state.elapsed_seconds), state.elapsed_seconds
        for batch in self._batches():
            done = progress(settings.schedule, state)
            if done >= 1:
                break
            lr = learning_rate(settings.schedule, done)
            meter.add(self._step(batch, lr), batch)
            state.elapsed_seconds = hooks.clock() - begun
            if state.elapsed_seconds - meter.since >= settings.report_seconds:
                hooks.report(meter.report(state, done, lr))
                meter = _Meter(state.elapsed_seconds)
            if state.elapsed_seconds - checked >= settings.export_seconds:
                hooks.check(self.check())
                state.elapsed_seconds = checked = hooks.clock() - begun
                meter = _Meter(checked)
        hooks.check(self.check())

    def check(self) -> Check:
        """Held-out acceptance now; remembers the best."""
        rates = heldout_acceptance(self.model, self._inputs, self._settings.batch_tokens)
        score = accepted_per_round(rates, _SCORE_DEPTH)
        is_best = score > self.state.best_score
        self.state.best_score = max(score, self.state.best_score)
        lags = {f"lag_{lag}": rate for lag, rate in enumerate(rates)}
        self.state.history.append({"step": float(self.state.step), "score": score, **lags})
        return Check(self.state.step, rates, score, is_best)

    def _batches(self) -> Iterator[Batch]:
        """Batches from where the state stands, for ever; the state names the next one."""
        settings, state = self._settings, self.state
        while True:
            plan = list(
                batches(self._lengths, settings.batch_tokens, seed=settings.seed, epoch=state.epoch)
            )
            while state.batch < len(plan):
                picked = plan[state.batch]
                state.batch += 1
                yield self._inputs.features.batch([self._inputs.train[index] for index in picked])
            state.epoch, state.batch = state.epoch + 1, 0

    def _step(self, batch: Batch, lr: float) -> float:
        settings, state = self._settings, self.state
        seed = (settings.seed * 1_000_003 + state.step) % 2**63
        mask = draw_masks(batch, settings.loss, torch.Generator().manual_seed(seed))
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = glide_loss(self.model, self._inputs.frozen, batch, mask, settings.loss)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.grad_clip)
        self._optimizer.step()
        state.step += 1
        state.num_tokens += int(batch.lengths.sum())
        return float(loss.detach())


@dataclass(slots=True)
class _Meter:
    """Losses and tokens since `since` (seconds of the run)."""

    since: float
    losses: list[float] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, loss: float, batch: Batch) -> None:
        self.losses.append(loss)
        self.num_tokens += int(batch.lengths.sum())

    def report(self, state: RunState, done: float, lr: float) -> Report:
        return Report(
            step=state.step,
            epoch=state.epoch,
            loss=sum(self.losses) / len(self.losses),
            lr=lr,
            tokens_per_second=self.num_tokens / (state.elapsed_seconds - self.since),
            done=done,
            elapsed_seconds=state.elapsed_seconds,
        )


def progress(schedule: Schedule, state: RunState) -> float:
    """Share of the run that is over, 0 and up."""
    if schedule.steps is not None:
        return state.step / schedule.steps
    assert schedule.minutes is not None
    return state.elapsed_seconds / (60 * schedule.minutes)


def learning_rate(schedule: Schedule, done: float) -> float:
    """Linear warm-up, then a cosine down to `floor` of the peak."""
    if done < schedule.warmup:
        return schedule.lr * max(done, 1e-3) / schedule.warmup
    falling = 0.5 * (1 + math.cos(math.pi * (done - schedule.warmup) / (1 - schedule.warmup)))
    return schedule.lr * (schedule.floor + (1 - schedule.floor) * falling)


@torch.inference_mode()
def heldout_acceptance(model: GlideModel, inputs: Inputs, batch_tokens: int) -> tuple[float, ...]:
    """Share of generated positions whose likeliest token the draft names, by lag 0..6."""
    documents = inputs.features.documents
    lengths = [len(documents[index].ids) for index in inputs.heldout]
    hits, total = torch.zeros(NUM_LAGS), 0
    for picked in batches(lengths, batch_tokens, seed=0, epoch=0):
        batch = inputs.features.batch([inputs.heldout[index] for index in picked])
        keep = position_weights(batch, 0.0).flatten() > 0
        argmax = batch.argmax.flatten()[keep]
        total += len(argmax)
        for lag in range(NUM_LAGS):
            hits[lag] += _hits(model, inputs.frozen, batch, lag=lag, keep=keep, argmax=argmax)
    return tuple((hits / total).tolist())


def _hits(
    model: GlideModel, frozen: Frozen, batch: Batch, *, lag: int, keep: Tensor, argmax: Tensor
) -> int:
    mask = lag_mask(batch.ids.shape[1], lag).expand(len(batch.ids), -1, -1, -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draft = states(model, frozen, batch, mask).flatten(0, 1)[keep]
        return int(greedy_matches(draft, argmax, frozen).sum())


def _groups(model: GlideModel, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay, norms and biases do not."""
    matrices = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
