"""A GliDe training run from files to weights: read, compute features, train, export.

Knows nothing of the command line; progress goes out through `Hooks` and a feature callback.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slipstream.core.errors import ModelMismatch, TrainingError
from slipstream.models.glide import GlideModel, Rope
from slipstream.models.glide_init import (
    GlideShape,
    config_for_target,
    init_from_target,
    trimmed_vocab,
)
from slipstream.models.glide_target import rotary_tables, target_parts
from slipstream.models.glide_weights import load_weights, save_glide
from slipstream.models.loading import LoadedModel, load_target_parts
from slipstream.models.tokenizer import text_tokenizer
from slipstream.revision import code_revision
from slipstream.text.prompts import encode_prompt
from slipstream.train.config import TrainSettings
from slipstream.train.data import DataFile, ReadLimits, read_data, split_heldout, token_counts
from slipstream.train.features import FeatureSet, FeatureSource, Progress, feature_store
from slipstream.train.glide import Frozen
from slipstream.train.provenance import (
    PROVENANCE_NAME,
    data_facts,
    read_provenance,
    write_provenance,
)
from slipstream.train.trainer import Check, Hooks, Inputs, Trainer

_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class GlideRun:
    """What to train, from what, into which directories.

    target: alias, path or hub id. out: the weights directory; work: where checkpoints go;
    features: where feature files go.
    layers: which target layers to read, None for the last, () for none: a draft without
    cross-attention, for which the block lengths of the settings mean nothing.
    licence: the target's licence, quoted in the provenance. command: quoted there too.
    """

    target: str
    data: tuple[Path, ...]
    out: Path
    work: Path
    features: Path
    layers: tuple[int, ...] | None
    head_size: int
    settings: TrainSettings
    init_from: Path | None = None
    is_resumed: bool = False
    licence: str = "unknown"
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.data:
            raise TrainingError("no data file was given, at least one is needed")
        if self.head_size < 1:
            raise TrainingError(f"head_size is {self.head_size}, it must be at least 1")
        if self.init_from is not None and self.is_resumed:
            raise TrainingError(
                "a resumed run takes its weights from the checkpoint: drop init_from"
            )


def train_glide(run: GlideRun, hooks: Hooks, *, feature_progress: Progress) -> None:
    """Train to the end of the schedule; `run.out` holds the weights of the best check."""
    revision = code_revision()
    target = load_target_parts(run.target)
    parts = target_parts(target.model)
    limits = ReadLimits(parts.vocab_size)
    encode = partial(encode_prompt, text_tokenizer(target.tokenizer))
    files = [read_data(path, limits, encode=encode) for path in run.data]
    model, vocab = _start(run, target, files)
    inputs = _inputs(run, target, files, vocab=vocab, progress=feature_progress)
    trainer = Trainer(model, inputs, run.settings, fingerprint=_fingerprint(run, files, vocab))
    if run.is_resumed:
        trainer.resume(run.work / _CHECKPOINT)

    def check(result: Check) -> None:
        if result.is_best:
            save_glide(model, vocab, run.out)
            facts = {"revision": revision, **_facts(run, files, trainer)}
            write_provenance(run.out / PROVENANCE_NAME, command=run.command, facts=facts)
        trainer.save(run.work / _CHECKPOINT)
        hooks.check(result)

    trainer.run(Hooks(hooks.clock, hooks.report, check))


def forced_ids(target: LoadedModel) -> list[int]:
    """Ids that every trimmed head holds: special and added tokens, every end of text."""
    eos = target.model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    tokenizer = target.tokenizer
    return [*ends, *tokenizer.all_special_ids, *tokenizer.added_tokens_decoder]


def _layers(run: GlideRun, target: LoadedModel) -> tuple[int, ...]:
    """The target layers that the draft is to read."""
    if run.layers is not None:
        return run.layers
    return (target_parts(target.model).num_layers - 1,)


def _start(
    run: GlideRun, target: LoadedModel, files: Sequence[DataFile]
) -> tuple[GlideModel, torch.Tensor]:
    """A float32 draft, from the target's own layers or `run.init_from`, and the vocabulary of its
    trimmed head, counted on the data at hand."""
    layers = _layers(run, target)
    shape = GlideShape(layers, run.head_size, run.settings.loss.block_max if layers else 0)
    name, digest = target.model_id, target.tokenizer_hash
    config = config_for_target(target.model, shape, name=name, tokenizer_hash=digest)
    documents = [document for data in files for document in data.documents]
    counts = torch.from_numpy(token_counts(documents, config.vocab_size))
    vocab = trimmed_vocab(counts, config.head_size, forced=forced_ids(target))
    config = replace(config, head_size=len(vocab))
    if run.init_from is None:
        return init_from_target(target.model, config).train(), vocab
    model, _ = load_weights(run.init_from)
    if replace(model.config, head_size=config.head_size, max_lag=config.max_lag) != config:
        raise ModelMismatch(f"the weights in {run.init_from} are of another target or shape")
    model.config = config
    return model.float().requires_grad_(True).train(), vocab


def _inputs(
    run: GlideRun,
    target: LoadedModel,
    files: Sequence[DataFile],
    *,
    vocab: torch.Tensor,
    progress: Progress,
) -> Inputs:
    parts = target_parts(target.model)
    layers = _layers(run, target)
    source = FeatureSource(target.model, target.model_id, target.tokenizer_hash, layers)
    stores = [feature_store(source, data, run.features, progress=progress) for data in files]
    features = FeatureSet(list(zip(files, stores, strict=True)))
    longest = max(len(document.ids) for document in features.documents)
    rope = Rope(*rotary_tables(parts, longest, dtype=torch.bfloat16))
    train, heldout = split_heldout(features.documents, run.settings.num_heldout)
    frozen = Frozen(parts.embeddings, parts.head[vocab], vocab, rope)
    return Inputs(features, train, heldout, frozen)


def _fingerprint(run: GlideRun, files: Sequence[DataFile], vocab: torch.Tensor) -> str:
    """Hash of all that must be equal for a checkpoint to be taken up."""
    record = {
        "data": [data.sha256 for data in files],
        "layers": run.layers,
        "vocab": vocab.tolist(),
        "settings": asdict(run.settings),
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _facts(run: GlideRun, files: Sequence[DataFile], trainer: Trainer) -> dict[str, Any]:
    return {
        "licence": f"derived from {trainer.model.config.target_model} ({run.licence})",
        "data": [data_facts(data) for data in files],
        "settings": asdict(run.settings),
        "started_from": None if run.init_from is None else read_provenance(run.init_from),
        "num_steps": trainer.state.step,
        "num_trained_tokens": trainer.state.num_tokens,
        "elapsed_seconds": round(trainer.state.elapsed_seconds, 1),
        "heldout_acceptance_by_lag": trainer.state.history,
    }
