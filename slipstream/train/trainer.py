"""The training loop: schedule, steps, held-out checks, checkpoints."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from slipstream.core.errors import TrainingError
from slipstream.models.glide.glide_files import read_tensors, write_tensors
from slipstream.train.config import FLOOR, GRAD_CLIP, WARMUP, TrainSchedule, TrainSettings
from slipstream.train.data import batches
from slipstream.train.features import FeatureSet, TrainBatch
from slipstream.train.glide import LossSum, generated_positions
from slipstream.train.group import SINGLE_PROCESS, TrainGroup
from slipstream.train.heldout import Heldout, HeldoutCounts

NUM_LAGS = 7
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True, slots=True)
class TrainReport:
    """One line of progress: mean loss since the last one (of the lead's part of each batch),
    speed, and the share of the run done."""

    step: int
    epoch: int
    loss: float
    lr: float
    tokens_per_second: float
    done: float


@dataclass(frozen=True, slots=True)
class Check:
    """A held-out check. The longest `heldout.length` so far is the best."""

    step: int
    heldout: Heldout
    is_best: bool


@dataclass(frozen=True, slots=True)
class TrainHooks:
    """Callbacks of the loop, and its clock in seconds."""

    clock: Callable[[], float]
    report: Callable[[TrainReport], None]
    check: Callable[[Check], None]


class Method(Protocol):
    """A kind of draft in training: its module, its loss, and what is checked."""

    @property
    def model(self) -> nn.Module:
        """Return the trained module, alone in its process."""

    def loss(self, trained: nn.Module, batch: TrainBatch, noise: Tensor) -> LossSum:
        """Return the loss of `trained`, the module as the group has wrapped it, by uniform numbers
        [B, 2] of each document."""

    def matches(self, batch: TrainBatch, num_lags: int) -> Tensor:
        """Return whether the draft proposes the likeliest token, [num_lags, B, T] bool: with the
        newest i keys or states of the target hidden; false where none was generated."""

    def save(self, directory: Path) -> None:
        """Write the weights as they are now."""


@dataclass(slots=True)
class RunState:
    """Progress of a run. `epoch` and `batch` name the next batch; `history` are the held-out
    checks so far."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    num_tokens: int = 0
    elapsed_seconds: float = 0.0
    best_length: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """One member's share of a run over `features`; `run` returns when the run is over."""

    def __init__(
        self,
        method: Method,
        features: FeatureSet,
        split: tuple[Sequence[int], Sequence[int]],
        settings: TrainSettings,
        *,
        group: TrainGroup = SINGLE_PROCESS,
    ) -> None:
        """`split` are the documents to train on and those held out."""
        self.state = RunState()
        self._method = method
        self._features, (self._train, self._heldout) = features, split
        self._settings = settings
        self._group = group
        every = [*method.model.parameters()]
        groups: list[dict[str, Any]] = [
            {"params": [own for own in every if own.ndim > 1]},
            {"params": [own for own in every if own.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=settings.schedule.lr,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.95),
            fused=True,
        )
        self._trained = group.wrap(method.model)
        self._lengths = [len(document.ids) for document in features.documents]

    def run(self, hooks: TrainHooks) -> None:
        """Train until the schedule ends, checking as often as is set.

        Only the lead's hooks are called, and only its clock counts.
        """
        state, settings, of_lead = self.state, self._settings, self._group.of_lead
        begun, checked = hooks.clock() - state.elapsed_seconds, state.elapsed_seconds
        since, taken = checked, list[tuple[Tensor, int]]()
        for picked in self._batches():
            done = progress(settings.schedule, state)
            if done >= 1:
                break
            lr = learning_rate(settings.schedule, done)
            taken.append(self._step(picked, lr))
            state.elapsed_seconds = of_lead(hooks.clock() - begun)
            if state.elapsed_seconds - since >= settings.report_seconds:
                if self._group.is_lead:
                    losses, counts = zip(*taken, strict=True)
                    speed = sum(counts) / (state.elapsed_seconds - since)
                    loss = float(torch.stack(losses).mean())
                    hooks.report(TrainReport(state.step, state.epoch, loss, lr, speed, done))
                since, taken = state.elapsed_seconds, []
            if state.elapsed_seconds - checked >= 60 * settings.export_minutes:
                self._check(hooks)
                state.elapsed_seconds = checked = of_lead(hooks.clock() - begun)
                since, taken = checked, []
        self._check(hooks)

    def save(self, path: Path, fingerprint: str) -> None:
        """Write a checkpoint of the run with this fingerprint in place of the one before."""
        tensors = dict(self._method.model.state_dict())
        for number, values in self._optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{number}/{key}": value for key, value in values.items()}
        state = json.dumps(asdict(self.state))
        write_tensors(tensors, path, state=state, fingerprint=fingerprint)

    def resume(self, path: Path, fingerprint: str) -> None:
        """Go on from a checkpoint: the rest of the run is that of an unbroken one.

        Raises `TrainingError` where there is none, or one of other data or settings.
        """
        if not path.is_file():
            raise TrainingError(f"{path} is no checkpoint to resume from")
        saved = read_tensors(path)
        with safe_open(path, "pt") as file:
            about = file.metadata()
        if about["fingerprint"] != fingerprint:
            raise TrainingError(
                f"the checkpoint {path} was made with other data or settings, start afresh"
            )
        optimizer: dict[int, dict[str, Tensor]] = {}
        for name in [name for name in saved if name.startswith(_OPTIMIZER)]:
            number, key = name.removeprefix(_OPTIMIZER).split("/")
            optimizer.setdefault(int(number), {})[key] = saved.pop(name)
        self._method.model.load_state_dict(saved)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": optimizer})
        self.state = RunState(**json.loads(about["state"]))

    def _check(self, hooks: TrainHooks) -> None:
        """Check on held-out text, by the lead; the others wait for it."""
        state = self.state
        if self._group.is_lead:
            heldout = self._measure()
            is_best = heldout.length > state.best_length
            state.best_length = max(heldout.length, state.best_length)
            rates = (("lag", heldout.acceptance), ("depth", heldout.survival))
            named = {f"{name}_{n}": rate for name, of in rates for n, rate in enumerate(of)}
            state.history.append({"step": float(state.step), "length": heldout.length, **named})
            hooks.check(Check(state.step, heldout, is_best))
        self._group.of_lead(0.0)

    def _measure(self) -> Heldout:
        """Return the rates on the held-out text."""
        counts = HeldoutCounts(NUM_LAGS)
        lengths = [self._lengths[index] for index in self._heldout]
        with self._group.autocast(self._settings.precision):
            for picked in batches(lengths, self._settings.batch_tokens, seed=0, epoch=0):
                batch = self._features.batch([self._heldout[index] for index in picked])
                matches = self._method.matches(batch, counts.num_lags)
                counts.add(matches, generated_positions(batch))
        return counts.result()

    def _batches(self) -> Iterator[list[int]]:
        """Yield the documents of each batch, without end; the state names the next one."""
        size, seed, state = self._settings.batch_tokens, self._settings.seed, self.state
        lengths = [self._lengths[index] for index in self._train]
        while True:
            epoch = batches(lengths, size, seed=seed, epoch=state.epoch)
            for picked in islice(epoch, state.batch, None):
                state.batch += 1
                yield [self._train[index] for index in picked]
            state.epoch, state.batch = state.epoch + 1, 0

    def _share(self, picked: Sequence[int]) -> tuple[TrainBatch, Tensor]:
        """Return this member's part of a batch, and its uniform numbers [B, 2]; where there is no
        part, a document of no weight."""
        settings, group = self._settings, self._group
        seed = (settings.seed * 1_000_003 + self.state.step) % 2**63
        noise = torch.rand(len(picked), 2, generator=torch.Generator().manual_seed(seed))
        if group.rank < len(picked):
            own, noise = picked[group.rank :: group.size], noise[group.rank :: group.size]
            batch = self._features.batch(own)
        else:
            batch, noise = self._features.batch(picked[:1]), noise[:1]
            batch = replace(batch, lengths=torch.zeros_like(batch.lengths))
        return batch, noise.to(group.device)

    def _step(self, picked: Sequence[int], lr: float) -> tuple[Tensor, int]:
        """Take a step; return the loss of this member's part and the tokens of all."""
        settings, state, group, optimizer = self._settings, self.state, self._group, self._optimizer
        for parameters in optimizer.param_groups:
            parameters["lr"] = lr
        optimizer.zero_grad(set_to_none=True)
        with group.autocast(settings.precision):
            batch, noise = self._share(picked)
            part = self._method.loss(self._trained, batch, noise)
        weight = group.total(part.weight).clamp_min(1.0)
        # The wrapped model takes the mean over the members; wanted is the sum.
        (part.value * (group.size / weight)).backward()
        torch.nn.utils.clip_grad_norm_(self._method.model.parameters(), GRAD_CLIP)
        optimizer.step()
        state.step += 1
        num_tokens = sum(self._lengths[index] for index in picked)
        state.num_tokens += num_tokens
        return (part.value / part.weight.clamp_min(1.0)).detach(), num_tokens


def progress(schedule: TrainSchedule, state: RunState) -> float:
    """Return the share of the run that is over, 0 and up."""
    if schedule.steps is not None:
        return state.step / schedule.steps
    assert schedule.minutes is not None
    return state.elapsed_seconds / (60 * schedule.minutes)


def learning_rate(schedule: TrainSchedule, done: float) -> float:
    """Return the rate: linear warm-up, then a cosine down to `FLOOR` of the peak."""
    if done < WARMUP:
        return schedule.lr * max(done, 1e-3) / WARMUP
    falling = 0.5 * (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP)))
    return schedule.lr * (FLOOR + (1 - FLOOR) * falling)
