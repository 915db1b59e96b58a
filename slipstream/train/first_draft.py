"""The draft that a training run starts from, its trimmed vocabulary, and the target's frozen parts.

FR-Spec and EAGLE-3 trim the draft's vocabulary by frequency; what is outside is never proposed.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from slipstream.core.errors import ModelMismatch
from slipstream.models.glide.glide import GlideModel, Rope
from slipstream.models.glide.glide_config import GlideConfig
from slipstream.models.glide.glide_files import load_weights
from slipstream.models.glide.glide_init import (
    GlideShape,
    config_for_target,
    init_from_target,
    trimmed_vocab,
)
from slipstream.models.glide.torch_parts import model_parts, rotary_tables
from slipstream.models.loading import LoadedModel
from slipstream.train.data import DataFile, token_counts
from slipstream.train.features import LENGTHS_ON_GPU
from slipstream.train.glide import Frozen


def forced_ids(target: LoadedModel) -> list[int]:
    """Return ids that every trimmed head holds: special and added tokens, every end of text."""
    eos = target.model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    tokenizer = target.tokenizer
    return [*ends, *tokenizer.all_special_ids, *tokenizer.added_tokens_decoder]


def first_draft(
    target: LoadedModel, shape: GlideShape, files: Sequence[DataFile], init_from: Path | None
) -> tuple[GlideModel, Tensor]:
    """Return a float32 draft, from the target's own layers or `init_from`, and its vocabulary.

    The trimmed head's vocabulary is that of `init_from`, where it has the wanted size, or counted
    on the data at hand. ModelMismatch for weights of another target or shape.
    """
    name, digest = target.model_id, target.tokenizer_hash
    config = config_for_target(target.model, shape, name=name, tokenizer_hash=digest)
    if init_from is None:
        vocab = _counted_vocab(target, config, files)
        return init_from_target(target.model, replace(config, head_size=len(vocab))).train(), vocab
    model, vocab = load_weights(init_from)
    if replace(model.config, head_size=config.head_size, max_lag=config.max_lag) != config:
        raise ModelMismatch(f"the weights in {init_from} are of another target or shape")
    if len(vocab) != config.head_size:
        vocab = _counted_vocab(target, config, files)
    model.config = replace(config, head_size=len(vocab))
    return model.float().requires_grad_(True).train(), vocab


def _counted_vocab(target: LoadedModel, config: GlideConfig, files: Sequence[DataFile]) -> Tensor:
    documents = [document for data in files for document in data.documents]
    counts = torch.from_numpy(token_counts(documents, config.vocab_size))
    return trimmed_vocab(counts, config.head_size, forced=forced_ids(target))


def borrowed(target: LoadedModel, vocab: Tensor, longest: int) -> Frozen:
    """Return the target's frozen parts, for texts of up to `longest` tokens and their padding."""
    parts = model_parts(target.model)
    rope = Rope(*rotary_tables(parts, longest + LENGTHS_ON_GPU, dtype=torch.float32))
    vocab = vocab.to(parts.head.device)
    return Frozen(parts.embeddings, parts.head[vocab], vocab, rope)
