"""A training run of a draft from files to weights: read, train, export.

Progress goes out through `TrainHooks`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from slipstream.core.errors import ModelMismatch, TrainingError
from slipstream.files import make_folder
from slipstream.models.eagle.eagle_init import (
    head_config,
    head_from_target,
    load_eagle,
    published_config,
)
from slipstream.models.format.digests import weights_digest
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_config import default_layers
from slipstream.models.glide.glide_files import load_weights
from slipstream.models.glide.glide_init import (
    GlideShape,
    config_for_target,
    init_from_target,
    trimmed_vocab,
)
from slipstream.models.glide.torch_parts import model_parts, rope_of
from slipstream.models.loaded import LoadedModel
from slipstream.models.torch.loading import load_target_parts
from slipstream.options import Bounded, check_bounds, option, parse_numbers, required
from slipstream.revision import code_revision
from slipstream.text.prompts import encode_prompt
from slipstream.train.config import MAX_UNROLLED, EagleLoss, GlideLoss, LossSettings, TrainSettings
from slipstream.train.data import DataFile, ReadLimits, read_data, split_heldout, token_counts
from slipstream.train.eagle import EagleMethod
from slipstream.train.features import LENGTHS_ON_GPU, FeatureSet
from slipstream.train.glide import Frozen, GlideMethod
from slipstream.train.group import SINGLE_PROCESS, TrainGroup
from slipstream.train.provenance import PROVENANCE_NAME, read_provenance, write_provenance
from slipstream.train.trainer import Check, Method, RunState, Trainer, TrainHooks


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """The draft to train, of any kind."""

    PANEL: ClassVar[str] = "Draft"

    target: str = required("Target model: an alias, a path or a hub id.")
    layers: str = option(
        "",
        "Target layers to read, as 2,15,27.",
        show_default="the last, or for EAGLE-3 2, half and last but two",
    )
    head_size: int = option(8192, "Tokens in the trimmed head.", least=1)
    init_from: Path | None = option(
        None, "Weights to start from.", show_default="the target's layers"
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        self.layers_of(())

    def layers_of(self, usual: tuple[int, ...]) -> tuple[int, ...]:
        """Return the layers that are read of a target; the usual ones where none are named."""
        return parse_numbers("layers", self.layers) if self.layers else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRun(Bounded):
    """Data and settings of a run, and where its weights go."""

    PANEL: ClassVar[str] = "Files"

    draft: DraftSettings
    settings: TrainSettings
    loss: LossSettings
    data: tuple[Path, ...] = required(
        "JSON lines to train on, or a directory of shards; repeatable."
    )
    out: Path = required("Directory for the weights.")
    resume: bool = option(False, "Continue from the checkpoint, OUT.checkpoint.")
    licence: str = option("unknown", "Licence of the target, for the provenance.")
    command: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Path:
        """Return the file that each check writes, with all that the run needs to go on."""
        return self.out.with_name(self.out.name + ".checkpoint")

    def frozen(self, target: LoadedModel, vocab: Tensor, files: Sequence[DataFile]) -> Frozen:
        """Return the target's parts, for the longest text and all steps beyond its end."""
        longest = max(len(document.ids) for file in files for document in file.documents)
        dtype = getattr(torch, self.settings.precision.value)
        return borrowed(target, vocab, longest + MAX_UNROLLED, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlideRun(DraftRun):
    """A run that trains a GliDe draft; the last layer is read where none are named."""

    loss: GlideLoss
    num_layers: int = option(
        1, "Layers of the draft, each with all cross-attentions.", least=1, rich_help_panel="Draft"
    )

    def start(self, target: LoadedModel, files: Sequence[DataFile]) -> tuple[Method, FeatureSet]:
        """Return the draft as it starts, on the target's device, and what it learns from."""
        layers = self.draft.layers_of((model_parts(target.model).num_layers - 1,))
        shape = GlideShape(layers, self.draft.head_size, self.loss.block_max, self.num_layers)
        model, vocab = first_draft(target, shape, files, self.draft.init_from)
        model, frozen = model.to(target.model.device), self.frozen(target, vocab, files)
        return GlideMethod(model, frozen, self.loss), FeatureSet(files, target.model, layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleRun(DraftRun):
    """A run that trains an EAGLE-3 head; inputs of layers are read."""

    loss: EagleLoss

    def start(self, target: LoadedModel, files: Sequence[DataFile]) -> tuple[Method, FeatureSet]:
        """Return the head as it starts, on the target's device, and what it learns from."""
        model, count = target.model, model_parts(target.model).num_layers
        layers = self.draft.layers_of(default_layers(count))
        config = head_config(model, layers, self.draft.head_size)
        if self.draft.init_from is None:
            vocab = _counted_vocab(target, config.head_size, files)
            head = head_from_target(model, replace(config, head_size=len(vocab)), vocab)
        else:
            head, vocab = load_eagle(self.draft.init_from, config, count)
        head, frozen = head.to(model.device), self.frozen(target, vocab, files)
        method = EagleMethod(head, frozen, self.loss, published_config(model, head.config))
        return method, FeatureSet(files, model, (), inputs=layers)


def train_draft(
    run: GlideRun | EagleRun, hooks: TrainHooks, *, group: TrainGroup = SINGLE_PROCESS
) -> None:
    """Train to the end of the run; `run.out` holds the weights of the best check.

    Every member of a group calls this with the same `run`; the lead writes and reports.
    """
    revision = code_revision()
    if run.checkpoint.exists() and not run.resume:
        raise TrainingError(f"{run.checkpoint} is of another run: --resume it, or delete the file")
    # cuDNN plans its attention anew for each shape of a batch, which takes longer than the step.
    torch.backends.cuda.enable_cudnn_sdp(False)
    target = load_target_parts(run.draft.target, device=str(group.device))
    files = read_files(run.data, target)
    method, features = run.start(target, files)
    split = split_heldout(features.documents, run.settings.heldout)
    trainer = Trainer(method, features, split, run.settings, group=group)
    fingerprint = _fingerprint(run, target, files)
    if run.resume:
        trainer.resume(run.checkpoint, fingerprint)

    def check(result: Check) -> None:
        if result.is_best:
            method.save(run.out)
            facts = _facts(run, trainer.state, target.model_id)
            place = run.out / PROVENANCE_NAME
            write_provenance(place, files, command=run.command, revision=revision, facts=facts)
        trainer.save(run.checkpoint, fingerprint)
        hooks.check(result)

    make_folder(run.out)
    trainer.run(TrainHooks(hooks.clock, hooks.report, check))


def _fingerprint(run: DraftRun, target: LoadedModel, files: Sequence[DataFile]) -> str:
    """Return the hash of what must be equal for a checkpoint to be resumed."""
    start = run.draft.init_from and weights_digest(run.draft.init_from)
    draft = {**asdict(run.draft), "target": weights_digest(target.path), "init_from": start}
    facts: dict[str, Any] = {"data": [file.sha256 for file in files], "draft": draft}
    facts |= {"settings": asdict(run.settings), "loss": asdict(run.loss)}
    facts |= {"num_layers": getattr(run, "num_layers", 1)}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_files(paths: Sequence[Path], target: LoadedModel) -> list[DataFile]:
    """Return the text in these files, as the target numbers its tokens."""
    limits = ReadLimits(model_parts(target.model).vocab_size)
    encode = partial(encode_prompt, target.tokenizer)
    return [read_data(path, limits, encode=encode) for path in paths]


def _facts(run: DraftRun, state: RunState, target: str) -> dict[str, Any]:
    """Return the provenance of the weights as they are now."""
    return {
        "licence": f"derived from {target} ({run.licence})",
        "settings": {**asdict(run.settings), "loss": asdict(run.loss)},
        "started_from": run.draft.init_from and read_provenance(run.draft.init_from),
        "num_steps": state.step,
        "num_trained_tokens": state.num_tokens,
        "elapsed_seconds": round(state.elapsed_seconds, 1),
        "checks": state.history,
    }


def first_draft(
    target: LoadedModel, shape: GlideShape, files: Sequence[DataFile], init_from: Path | None
) -> tuple[GlideModel, Tensor]:
    """Return a float32 draft, from the target's own layers or `init_from`, and its vocabulary.

    FR-Spec and EAGLE-3 trim the draft's vocabulary by frequency; what is outside is never proposed.
    It is that of `init_from`, where it has the wanted size, or counted on the data at hand.
    ModelMismatch for weights of another target or shape.
    """
    name, digest = target.model_id, target.tokenizer_hash
    config = config_for_target(target.model, shape, name=name, tokenizer_hash=digest)
    if init_from is None:
        vocab = _counted_vocab(target, config.head_size, files)
        return init_from_target(target.model, replace(config, head_size=len(vocab))).train(), vocab
    model, vocab = load_weights(init_from)
    if replace(model.config, head_size=config.head_size, max_lag=config.max_lag) != config:
        raise ModelMismatch(f"the weights in {init_from} are of another target or shape")
    if len(vocab) != config.head_size:
        vocab = _counted_vocab(target, config.head_size, files)
    model.config = replace(config, head_size=len(vocab))
    return model.float().requires_grad_(True).train(), vocab


def _counted_vocab(target: LoadedModel, size: int, files: Sequence[DataFile]) -> Tensor:
    """Return a vocabulary by frequency, with special and added tokens and every end of text."""
    documents = [document for data in files for document in data.documents]
    counts = torch.from_numpy(token_counts(documents, model_parts(target.model).vocab_size))
    eos = target.model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return trimmed_vocab(counts, size, forced=[*ends, *target.tokenizer.added_ids()])


def borrowed(target: LoadedModel, vocab: Tensor, longest: int, dtype: torch.dtype) -> Frozen:
    """Return the target's frozen parts in a dtype, for texts of up to `longest` tokens and their
    padding."""
    parts = model_parts(target.model)
    table: Tensor = parts.embedding.to(dtype)
    rope = rope_of(parts.rotary(longest + LENGTHS_ON_GPU), table)
    return Frozen(table, parts.head_rows(vocab).to(dtype), vocab.to(table.device), rope)
