"""Trains a decision model for a GliDe draft: python -m slipstream.train.decision --help.

Examples are the draft's states on text it was not trained on, at every lag it may meet; the label
is whether the target accepts the draft's likeliest token when it decodes greedily ("Improving
Multi-Candidate Speculative Decoding", acceptance of the drafted token).
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
from slipstream.train.data import DataFile, ReadLimits, batches, read_data
from slipstream.train.features import FeatureSet, FeatureSource, feature_store
from slipstream.train.glide import Frozen, greedy_matches, lag_mask, position_weights, states
from slipstream.train.provenance import code_revision, data_facts, write_provenance
from slipstream.train.run import encode_prompt

_BATCH_TOKENS = 4096
_VALIDATION_SHARE = 5


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """Adam at `lr`; the epoch with the lowest validation loss is kept."""

    widths: tuple[int, ...] = (128, 32)
    lr: float = 1e-3
    batch_rows: int = 512
    epochs: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.batch_rows < 1 or self.epochs < 1:
            raise TrainingError("lr must be positive, batch_rows and epochs at least 1")


@dataclass(frozen=True, slots=True)
class Examples:
    """states [N, d] float32 and labels [N] (1.0 accepted, 0.0 not)."""

    states: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Fit:
    """Validation: binary cross-entropy of the model kept, that of a constant, mean label."""

    loss: float
    constant_loss: float
    acceptance: float


def train_decision(
    train: Examples, validation: Examples, settings: DecisionSettings
) -> tuple[DecisionModel, Fit]:
    """Fit a decision model; the best epoch on `validation` is returned."""
    torch.manual_seed(settings.seed)
    model = DecisionModel((train.states.shape[1], *settings.widths))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    generator = torch.Generator().manual_seed(settings.seed)
    best, kept = float("inf"), model.state_dict()
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(train.labels), generator=generator).split(
            settings.batch_rows
        ):
            loss = F.binary_cross_entropy_with_logits(model(train.states[rows]), train.labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held = _loss(model, validation)
        if held < best:
            best = held
            kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    mean = train.labels.mean().clamp(1e-6, 1 - 1e-6)
    constant = F.binary_cross_entropy(mean.expand_as(validation.labels), validation.labels)
    return model, Fit(best, float(constant), float(validation.labels.mean()))


@torch.inference_mode()
def collect(
    model: GlideModel, frozen: Frozen, features: FeatureSet, indices: Sequence[int]
) -> Examples:
    """Every generated position of the documents at `indices`, at lags 0..max_lag-1."""
    documents = features.documents
    lengths = [len(documents[index].ids) for index in indices]
    hidden, labels = [], []
    for picked in batches(lengths, _BATCH_TOKENS, seed=0, epoch=0):
        batch = features.batch([indices[index] for index in picked])
        keep = position_weights(batch, 0.0).flatten() > 0
        argmax = batch.argmax.flatten()[keep]
        for lag in range(model.config.max_lag):
            mask = lag_mask(batch.ids.shape[1], lag).expand(len(batch.ids), -1, -1, -1)
            rows = states(model, frozen, batch, mask).flatten(0, 1)[keep]
            hidden.append(rows.float())
            labels.append(greedy_matches(rows, argmax, frozen).float())
    return Examples(torch.cat(hidden).clone(), torch.cat(labels).clone())


def _loss(model: DecisionModel, examples: Examples) -> float:
    with torch.no_grad():
        logits = model(examples.states)
    return float(F.binary_cross_entropy_with_logits(logits, examples.labels))


def _examples(
    target: LoadedModel, weights: Path, data: DataFile, features: Path
) -> tuple[Examples, Examples]:
    model, vocab = load_weights(weights)
    layers = model.config.target_layers
    source = FeatureSource(target.model, target.model_id, target.tokenizer_hash, layers)
    store = feature_store(source, data, features, progress=lambda done, total: None)
    longest = max(len(document.ids) for document in data.documents)
    parts = target_parts(target.model)
    rope = Rope(*rotary_tables(parts, longest, dtype=torch.bfloat16))
    frozen = Frozen(parts.embeddings, parts.head[vocab], vocab, rope)
    answered = [i for i, d in enumerate(data.documents) if len(d.ids) > d.num_prompt]
    if len(answered) < _VALIDATION_SHARE:
        raise TrainingError(f"{data.name} holds {len(answered)} answers, too few to train on")
    held = answered[::_VALIDATION_SHARE]
    rest = [index for index in answered if index not in set(held)]
    both = FeatureSet([(data, store)])
    return collect(model, frozen, both, rest), collect(model, frozen, both, held)


def main(
    *,
    target: Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")],
    weights: Annotated[Path, typer.Option(help="Weights of the draft; the model goes there.")],
    data: Annotated[Path, typer.Option(help="Conversations the draft was not trained on.")],
    feature_dir: Annotated[Path, typer.Option(help="Directory for target features.")],
) -> None:
    """Train a decision model for a GliDe draft."""
    loaded, settings = load_target_parts(target), DecisionSettings()
    limits = ReadLimits(target_parts(loaded.model).vocab_size)
    file = read_data(data, limits, encode=partial(encode_prompt, loaded))
    train, validation = _examples(loaded, weights, file, feature_dir)
    model, fit = train_decision(train, validation, settings)
    save_decision(model, weights / DECISION_NAME)
    facts = {
        "revision": code_revision(Path(__file__).parent),
        "data": [data_facts(file)],
        "settings": asdict(settings),
        "num_examples": len(train.labels),
        "validation": asdict(fit),
    }
    command = ("python", "-m", "slipstream.train.decision", *sys.argv[1:])
    write_provenance(weights / "decision.provenance.json", command=command, facts=facts)
    typer.echo(f"validation loss {fit.loss:.4f}, of a constant {fit.constant_loss:.4f}")


if __name__ == "__main__":
    typer.run(main)
