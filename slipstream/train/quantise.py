"""A draft's weights in 4 bits: moments of its inputs, rounding, and acceptance before and after.

The file lies beside the weights that it was made of; native drafts read it in their place.
Progress goes out through a callback.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slipstream.core.errors import TrainingError
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_files import load_weights, save_blocks
from slipstream.models.glide.glide_weights import (
    HEAD,
    GlideBlocks,
    block_shapes,
    check_target,
    rows_digest,
)
from slipstream.models.glide.load import glide_folder
from slipstream.models.glide.torch_parts import model_parts
from slipstream.models.loaded import LoadedModel
from slipstream.models.torch.arrays import as_array
from slipstream.models.torch.loading import load_target_parts
from slipstream.options import option, required
from slipstream.revision import code_revision
from slipstream.train.data import DataFile, padded_batches, split_heldout
from slipstream.train.features import FeatureSet, TrainBatch
from slipstream.train.glide import Frozen, generated_positions, lag_mask, lag_matches, states
from slipstream.train.gptq import Q4Matrix, gptq
from slipstream.train.heldout import CHAIN, Heldout, HeldoutCounts
from slipstream.train.provenance import write_provenance
from slipstream.train.run import borrowed, read_files

PROVENANCE_NAME = "model.q4_1.provenance.json"
_BATCH_TOKENS = 4096
_LAGS = (0, 1, 3)
"""Numbers of newest target keys that are hidden while moments are taken, each in a pass."""
_SHARED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Linears, and those that stand for them, because both have the same input."""
Progress = Callable[[str, int, int], None]
"""Called with (name of the stage, steps done, steps in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantiseRun:
    """Models and text of a run."""

    target: str = required("Target model: an alias, a path or a hub id.")
    data: tuple[Path, ...] = required(
        "JSON lines that the target wrote, or a directory of shards of `train data`; repeatable."
    )
    draft: str = option("glide", "glide (the one shipped) or a directory of weights; written to.")
    num_conversations: int = option(84, "Conversations to read.", min=1)
    num_heldout: int = option(60, "Other prompts, to measure acceptance with.", min=1)
    seed: int = option(0, "Seed that draws the conversations to read.", min=0)
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuantiseOutcome:
    """The file, and acceptance on held-out conversations with the weights as they were (`before`)
    and in blocks (`after`)."""

    path: Path
    before: Heldout
    after: Heldout


def quantise(run: QuantiseRun, *, progress: Progress) -> QuantiseOutcome:
    """Write the weights of a draft in Q4_1 blocks, rounded by GPTQ.

    Raises `ModelMismatch` for the draft of another target, `WeightsError` for inputs that are no
    whole blocks, and `TrainingError` for too little data.
    """
    target = load_target_parts(run.target, device=run.device)
    folder = glide_folder(run.draft, target.model_id)
    model, vocab = load_weights(folder)
    check_target(model.config, model_parts(target.model, tokenizer_hash=target.tokenizer_hash))
    shapes = block_shapes(model.config)
    text = _text(run, target, model.config.target_layers)
    longest = max(len(document.ids) for document in text.features.documents)
    frozen = borrowed(target, vocab, longest, torch.float32)
    draft = _Draft(model.float().to(run.device), frozen)
    moments = input_moments(draft.model, draft.frozen, text.batches(text.read, "reading", progress))
    matrices = _rounded(draft.matrices(shapes), moments, progress)
    drafts = (draft, draft.replaced({name: own.weights() for name, own in matrices.items()}))
    before, after = _measured(drafts, text.batches(text.heldout, "measuring", progress))
    blocks = {name: as_array(own.packed()) for name, own in matrices.items()}
    head, digest = blocks.pop(HEAD), rows_digest(as_array(draft.frozen.head))
    path = save_blocks(GlideBlocks(blocks, head, digest), folder)
    facts: dict[str, Any] = {
        name: {**asdict(found), "length": found.length}
        for name, found in (("before", before), ("after", after))
    }
    facts |= {name: getattr(run, name) for name in ("num_conversations", "num_heldout", "seed")}
    place, revision = folder / PROVENANCE_NAME, code_revision()
    write_provenance(place, text.files, command=run.command, revision=revision, facts=facts)
    return QuantiseOutcome(path, before, after)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A float32 draft, and the target's parts that it uses."""

    model: GlideModel
    frozen: Frozen

    def matrices(self, names: Iterable[str]) -> dict[str, Tensor]:
        own = {**self.model.state_dict(), HEAD: self.frozen.head}
        return {name: own[name].cpu() for name in names}

    def replaced(self, matrices: Mapping[str, Tensor]) -> "_Draft":
        model, device = deepcopy(self.model), self.frozen.head.device
        model.load_state_dict(matrices, strict=False)  # the head is no part of it
        return _Draft(model, replace(self.frozen, head=matrices[HEAD].to(device)))


@dataclass(frozen=True, slots=True)
class _Text:
    """Conversations: their features, and indices of them in batches, to read and to measure by."""

    files: tuple[DataFile, ...]
    features: FeatureSet
    read: list[list[int]]
    heldout: list[list[int]]

    def batches(
        self, chosen: Sequence[Sequence[int]], stage: str, progress: Progress
    ) -> Iterator[TrainBatch]:
        """Yield batches with their features; progress is that of a stage of this name."""
        for done, indices in enumerate(chosen, start=1):
            yield self.features.batch(indices)
            progress(stage, done, len(chosen))


def _text(run: QuantiseRun, target: LoadedModel, layers: tuple[int, ...]) -> _Text:
    files = tuple(read_files(run.data, target))
    features = FeatureSet(files, target.model, layers)
    documents = features.documents
    train, heldout = split_heldout(documents, run.num_heldout)
    answered = [index for index in train if len(documents[index].ids) > documents[index].num_prompt]
    if len(answered) < run.num_conversations:
        raise TrainingError(
            f"{len(answered)} answered conversations are too few to read {run.num_conversations},"
            f" with {run.num_heldout} prompts held out"
        )
    order = np.random.default_rng(run.seed).permutation(len(answered))
    chosen = [answered[index] for index in order[: run.num_conversations]]
    lengths = [len(document.ids) for document in documents]
    read, measured = (
        padded_batches(sorted(part, key=lengths.__getitem__), lengths, _BATCH_TOKENS)
        for part in (chosen, heldout)
    )
    return _Text(files, features, read, measured)


def _input_of(name: str) -> str:
    """Return the name of the parameter that stands for all of one input with that of `name`."""
    module, _, kind = name.rpartition(".")
    parent, _, linear = module.rpartition(".")
    return f"{parent}.{_SHARED[linear]}.{kind}" if linear in _SHARED else name


class InputMoments:
    """Sums of x x^T over the inputs x of a draft's linears and of its head, by parameter."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, name: str, inputs: Tensor) -> None:
        """Add inputs [n, d] of a parameter."""
        self._sums[name] = self._sums.get(name, 0) + (inputs.T @ inputs).cpu().double()
        self._counts[name] += len(inputs)

    def mean(self, name: str) -> Tensor:
        """Return E[x x^T] of the inputs of a parameter, [d, d] float64 on the CPU."""
        source = _input_of(name)
        return self._sums[source] / self._counts[source]


@torch.inference_mode()
def input_moments(model: GlideModel, frozen: Frozen, batches: Iterable[TrainBatch]) -> InputMoments:
    """Return the moments of a float32 draft's inputs at the generated positions of `batches`, at
    several lags within those that it was trained for."""
    moments = InputMoments()
    for batch in batches:
        keep = generated_positions(batch).flatten()
        with _inputs_to(moments, model, keep):
            for lag in (lag for lag in _LAGS if lag < max(1, model.config.max_lag)):
                mask = lag_mask(batch.ids.shape[1], lag, device=batch.ids.device)
                final = states(model, frozen, batch, mask.expand(len(batch.ids), -1, -1, -1))
                moments.add(HEAD, final.flatten(0, 1)[keep])
    return moments


@contextmanager
def _inputs_to(moments: InputMoments, model: GlideModel, keep: Tensor) -> Iterator[None]:
    """Have every forward of `model` add its linears' inputs at the positions that `keep` marks."""

    def add(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        moments.add(name, inputs[0].flatten(0, 1)[keep])

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            weights = f"{name}.weight"
            if isinstance(module, nn.Linear) and _input_of(weights) == weights:
                hooks.enter_context(module.register_forward_pre_hook(partial(add, weights)))
        yield


def _rounded(
    matrices: Mapping[str, Tensor], moments: InputMoments, progress: Progress
) -> dict[str, Q4Matrix]:
    """Return the matrices in blocks; those of one input are rounded together."""
    groups: dict[str, list[str]] = {}
    for name in matrices:
        groups.setdefault(_input_of(name), []).append(name)
    rounded: dict[str, Q4Matrix] = {}
    for done, names in enumerate(groups.values(), start=1):
        found = gptq(torch.cat([matrices[name] for name in names]), moments.mean(names[0]))
        start = 0
        for name in names:
            rounded[name] = found.rows(start, len(matrices[name]))
            start += len(matrices[name])
        progress("rounding", done, len(groups))
    return rounded


def _measured(drafts: Sequence[_Draft], batches: Iterable[TrainBatch]) -> list[Heldout]:
    counts = [HeldoutCounts(CHAIN) for _ in drafts]
    for batch in batches:
        generated = generated_positions(batch)
        for draft, own in zip(drafts, counts, strict=True):
            own.add(lag_matches(draft.model, draft.frozen, batch, CHAIN), generated)
    return [own.result() for own in counts]
