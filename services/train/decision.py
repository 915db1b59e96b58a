"""Trains a decision model for a GliDe draft: python -m slipstream.train.decision --help.

Examples are the draft's states at the lags it may meet; the label is whether the target accepts
the draft's likeliest token when it decodes greedily ("Improving Multi-Candidate Speculative
Decoding", acceptance of the drafted token). Validation text must be new to the draft.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.decision import DECISION_NAME, DecisionModel, save_decision
from slipstream.models.glide import GlideModel, Rope
from slipstream.models.glide_target import rotary_tables, target_parts
from slipstream.models.glide_weights import load_weights
from slipstream.models.loading import LoadedModel, load_target_parts
from slipstream.models.tokenizer import text_tokenizer
from slipstream.revision import code_revision
from slipstream.text.prompts import encode_prompt
from slipstream.train.data import DataFile, ReadLimits, batches, read_data
from slipstream.train.features import Batch, FeatureSet, FeatureSource, feature_store
from slipstream.train.glide import Frozen, greedy_matches, lag_mask, position_weights, states
from slipstream.train.provenance import data_facts, write_provenance

_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """Adam at `lr`; the epoch with the lowest validation loss is kept. Of the training
    conversations the first `max_documents` are used."""

    widths: tuple[int, ...] = (128, 32)
    lr: float = 1e-3
    batch_rows: int = 512
    epochs: int = 10
    max_documents: int = 4000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lr <= 0 or min(self.batch_rows, self.epochs, self.max_documents) < 1:
            raise TrainingError("lr must be positive; batch_rows, epochs, max_documents from 1 up")


@dataclass(frozen=True, slots=True)
class Examples:
    """states [N, d] float32, labels [N] (1.0 accepted, 0.0 not) and, to compare with, the draft's
    top-1 probability [N]."""

    states: Tensor
    labels: Tensor
    confidence: Tensor


@dataclass(frozen=True, slots=True)
class Fit:
    """Validation: binary cross-entropy of the model kept, of the mean label as a constant, of the
    draft's top-1 probability taken as the chance; and the mean label itself."""

    loss: float
    constant_loss: float
    confidence_loss: float
    acceptance: float


def train_decision(
    train: Examples, validation: Examples, settings: DecisionSettings
) -> tuple[DecisionModel, Fit]:
    """Fit a decision model on standardised states; the best epoch on `validation` is returned,
    with the standardisation folded into its first layer."""
    torch.manual_seed(settings.seed)
    model = DecisionModel((train.states.shape[1], *settings.widths))
    mean, scale = train.states.mean(0), train.states.std(0).clamp_min(1e-6)
    states, held = (train.states - mean) / scale, (validation.states - mean) / scale
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    best, kept = float("inf"), model.state_dict()
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(states)).split(settings.batch_rows):
            loss = F.binary_cross_entropy_with_logits(model(states[rows]), train.labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            after = F.binary_cross_entropy_with_logits(model(held), validation.labels)
        if float(after) < best:
            best = float(after)
            kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    _fold(model, mean, scale)
    return model, _fit(best, validation)


@torch.no_grad()
def _fold(model: DecisionModel, mean: Tensor, scale: Tensor) -> None:
    """Make the first layer read raw states instead of standardised ones."""
    first = model.layers[0]
    first.weight.div_(scale)
    first.bias.sub_(first.weight @ mean)


def _fit(loss: float, validation: Examples) -> Fit:
    labels, cross_entropy = validation.labels, F.binary_cross_entropy
    acceptance = labels.mean()
    constant = cross_entropy(acceptance.expand_as(labels), labels)
    confidence = cross_entropy(validation.confidence.clamp(1e-6, 1 - 1e-6), labels)
    return Fit(loss, float(constant), float(confidence), float(acceptance))


@torch.inference_mode()
def collect(
    model: GlideModel, frozen: Frozen, features: FeatureSet, indices: Sequence[int]
) -> Examples:
    """Every generated position of the documents at `indices`, each batch of them at two of the
    lags 0..max_lag-1 in turn."""
    documents = features.documents
    lengths = [len(documents[index].ids) for index in indices]
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for number, picked in enumerate(batches(lengths, _BATCH_TOKENS, seed=0, epoch=0)):
        batch = features.batch([indices[index] for index in picked])
        for lag in (2 * number % model.config.max_lag, (2 * number + 1) % model.config.max_lag):
            found.append(_at_lag(model, frozen, batch, lag))
    states_, labels, confidence = (torch.cat(parts).clone() for parts in zip(*found, strict=True))
    return Examples(states_, labels, confidence)


def _at_lag(
    model: GlideModel, frozen: Frozen, batch: Batch, lag: int
) -> tuple[Tensor, Tensor, Tensor]:
    """States [N, d], labels [N] and top-1 probabilities [N] of the generated positions."""
    keep = position_weights(batch, 0.0).flatten() > 0
    mask = lag_mask(batch.ids.shape[1], lag).expand(len(batch.ids), -1, -1, -1)
    rows = states(model, frozen, batch, mask).flatten(0, 1)[keep]
    labels = greedy_matches(rows, batch.argmax.flatten()[keep], frozen).float()
    confidence = [top_probability(part, frozen) for part in rows.split(_BATCH_TOKENS // 8)]
    return rows.float(), labels, torch.cat(confidence)


def top_probability(rows: Tensor, frozen: Frozen) -> Tensor:
    """The largest probability of the draft's law at each row, [N]."""
    scores = (rows.to(frozen.head.dtype) @ frozen.head.T).float()
    return (scores.amax(-1) - scores.logsumexp(-1)).exp()


def _frozen(target: LoadedModel, vocab: Tensor, longest: int) -> Frozen:
    parts = target_parts(target.model)
    rope = Rope(*rotary_tables(parts, longest, dtype=torch.bfloat16))
    return Frozen(parts.embeddings, parts.head[vocab], vocab, rope)


def _examples(
    target: LoadedModel,
    weights: Path,
    files: tuple[DataFile, DataFile],
    *,
    features: Path,
    max_documents: int,
) -> tuple[Examples, Examples]:
    """Examples of the training file, without prompts of the other, and of the validation file."""
    model, vocab = load_weights(weights)
    layers = model.config.target_layers
    source = FeatureSource(target.model, target.model_id, target.tokenizer_hash, layers)
    longest = max(len(document.ids) for file in files for document in file.documents)
    frozen, held = _frozen(target, vocab, longest), {d.key for d in files[1].documents}
    out = []
    for file, excluded in zip(files, (held, set[str]()), strict=True):
        store = feature_store(source, file, features, progress=lambda done, total: None)
        indices = [
            index
            for index, document in enumerate(file.documents)
            if len(document.ids) > document.num_prompt and document.key not in excluded
        ]
        if not indices:
            raise TrainingError(f"{file.name} holds no answer to train or validate on")
        out.append(collect(model, frozen, FeatureSet([(file, store)]), indices[:max_documents]))
    return out[0], out[1]


def main(
    *,
    target: Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")],
    weights: Annotated[Path, typer.Option(help="Weights of the draft; the model goes there.")],
    data: Annotated[Path, typer.Option(help="Conversations to train on.")],
    validation: Annotated[Path, typer.Option(help="Conversations new to the draft.")],
    feature_dir: Annotated[Path, typer.Option(help="Directory for target features.")],
) -> None:
    """Train a decision model for a GliDe draft."""
    loaded, settings = load_target_parts(target), DecisionSettings()
    limits = ReadLimits(target_parts(loaded.model).vocab_size)
    encode = partial(encode_prompt, text_tokenizer(loaded.tokenizer))
    files = (read_data(data, limits, encode=encode), read_data(validation, limits, encode=encode))
    most = settings.max_documents
    train, held = _examples(loaded, weights, files, features=feature_dir, max_documents=most)
    model, fit = train_decision(train, held, settings)
    save_decision(model, weights / DECISION_NAME)
    facts = {
        "revision": code_revision(),
        "data": [data_facts(file) for file in files],
        "settings": asdict(settings),
        "num_examples": len(train.labels),
        "validation": asdict(fit),
    }
    command = ("python", "-m", "slipstream.train.decision", *sys.argv[1:])
    write_provenance(weights / "decision.provenance.json", command=command, facts=facts)
    typer.echo(
        f"validation loss {fit.loss:.4f}, of a constant {fit.constant_loss:.4f}, "
        f"of the top-1 probability {fit.confidence_loss:.4f}"
    )


if __name__ == "__main__":
    typer.run(main)
