"""How much of what a target says a trimmed head can name at all. Knows nothing of training.

(FR-Spec and EAGLE-3 trim the draft's vocabulary by frequency; what is outside is never proposed.)
"""

from collections.abc import Sequence

import numpy as np
import torch

from slipstream.core.errors import TrainingError
from slipstream.models.glide_init import trimmed_vocab
from slipstream.train.data import Document, split_heldout, token_counts


def coverage(
    documents: Sequence[Document],
    sizes: Sequence[int],
    *,
    vocab_size: int,
    forced: Sequence[int],
    num_heldout: int,
) -> tuple[float, ...]:
    """For each head size, the share of generated tokens of held-out prompts that are in the head.

    Heads are filled as training fills them, from the other documents; `forced` ids are always in.
    Raises `TrainingError` for a size that the vocabulary does not have.
    """
    for size in sizes:
        if not 1 <= size <= vocab_size:
            raise TrainingError(f"a head size is {size}, but must be from 1 to {vocab_size}")
    train, heldout = split_heldout(documents, num_heldout)
    counts = torch.from_numpy(token_counts([documents[i] for i in train], vocab_size))
    said = token_counts([documents[i] for i in heldout], vocab_size)
    kept = [trimmed_vocab(counts, size, forced=forced).numpy() for size in sizes]
    return tuple(float(said[vocab].sum() / np.maximum(said.sum(), 1)) for vocab in kept)
