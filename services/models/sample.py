"""A few tokens through transformers' own forward, to hold ours against."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.core.errors import ModelError

SAMPLE_TOKENS = 24
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}


def sample_tokens(vocab_size: int) -> list[int]:
    """Return random token ids, the same ones at every call."""
    noise = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(vocab_size, (SAMPLE_TOKENS,), generator=noise).tolist()
    return tokens


@torch.inference_mode()
def sample_hidden(model: PreTrainedModel) -> Tensor:
    """Return transformers' final hidden states [SAMPLE_TOKENS, d] of these tokens."""
    head: Tensor = model.get_output_embeddings().weight
    tokens = torch.tensor([sample_tokens(head.shape[0])], device=model.device)
    hidden: Tensor = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0]
    return hidden


def check_hidden(hidden: Tensor, expected: Tensor, name: str) -> None:
    """Raise `ModelError` where our hidden states are not those of transformers."""
    error = (hidden.float() - expected.float()).norm() / expected.float().norm()
    limit = _TOLERANCE.get(expected.dtype, 0.02)
    if not error < limit:
        raise ModelError(
            f"{name} can't be served: hidden states differ from transformers' own by"
            f" {error:.2g} (limit {limit})"
        )
