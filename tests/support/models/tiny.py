"""Small models with random weights, and token ids for text: no downloads, milliseconds each."""

import random
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from slipstream.core.row_costs import Offer
from slipstream.core.tree import TokenTree
from slipstream.models.causal import CausalModel
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_config import GlideConfig
from slipstream.models.glide.glide_init import init_from_target
from slipstream.models.glide.glide_scorer import GlideScorer
from slipstream.models.glide.glide_weights import GlideWeights
from slipstream.models.glide.load import draft_scorer, target_parts
from slipstream.models.kv.batch import Part
from slipstream.models.torch.arrays import as_array, numpy_dtype
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.memory import KvMemory
from slipstream.verifying.meter import StepCost
from support.cuda import operators  # noqa: F401
from support.models.in_memory import causal_model

VOCAB = 48
EOS = 0
_SHAPE = {
    **{"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "max_position_embeddings": 512},
    **{"eos_token_id": EOS, "bos_token_id": None, "pad_token_id": None},
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _GROUPED),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3", _GROUPED),
    # Fused projections and a parallel residual: served by transformers' own modules.
    "phi3": ("Phi3", {"num_key_value_heads": 2}),
    "gpt-neox": ("GPTNeoX", {}),
}
FAMILIES = tuple(_FAMILIES)


def hf_model(
    family: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> Any:
    name, extra = _FAMILIES[family]
    config, model = (getattr(transformers, name + end) for end in ("Config", "ForCausalLM"))
    torch.manual_seed(seed)
    made = model(config(**{**_SHAPE, **extra, "initializer_range": 0.12, **changes}))
    return made.to(dtype).eval()


def causal(
    family: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    numerics: str = "auto",
    seed: int = 0,
    engine: str | None = None,
    hidden_layers: Sequence[int] = (),
) -> CausalModel:
    model = hf_model(family, dtype=dtype, seed=seed)
    return causal_model(model, numerics=numerics, engine=engine, hidden_layers=hidden_layers)


class FixedMeter:
    """Offers the same token budget to all sessions and learns nothing."""

    def __init__(self, num_tokens: int) -> None:
        self._offer = Offer(num_tokens)

    def offer(self, num_verdicts: int) -> Offer:
        return self._offer

    def record(self, step: StepCost) -> None:
        pass


def local_target(
    model: CausalModel, *, free_rows: int = 16, max_sessions: int = 64, num_pages: int = 64
) -> LocalTarget:
    """An engine over a model, with memory for `num_pages` pages of 128 tokens."""
    memory = KvMemory(model.pool(num_pages), limit=model.context_length)
    return LocalTarget(model, memory, FixedMeter(free_rows), max_sessions=max_sessions)


def glide(
    *,
    dtype: torch.dtype = torch.float32,
    layers: tuple[int, ...] = (0, 2),
    max_lag: int = 8,
    device: str = "cpu",
    native: bool = True,
) -> GlideScorer:
    """An untrained GliDe draft of `hf_model()`, its head trimmed to every token but a few."""
    model = hf_model(dtype=dtype).to(device)
    parts = target_parts(model)
    names = {"target_model": "tiny", "tokenizer_hash": "tiny"}
    sizes = {"vocab_size": VOCAB, "head_size": VOCAB - 6, "hidden_size": 64}
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 96}
    config = GlideConfig(**names, **sizes, **heads, target_layers=layers, max_lag=max_lag)
    vocab = torch.tensor([token for token in range(VOCAB) if token % 8 != 5])
    draft = init_from_target(model, config).to(device)
    weights = weights_of(draft, vocab)
    return draft_scorer(weights, parts, dtype=numpy_dtype(dtype), native=native)


def weights_of(model: GlideModel, vocab: torch.Tensor) -> GlideWeights:
    tensors = {name: as_array(value) for name, value in model.state_dict().items()}
    return GlideWeights(model.config, tensors, as_array(vocab.to(torch.int64)))


def tokens(count: int, seed: int = 0) -> list[int]:
    noise = torch.Generator().manual_seed(seed)
    return (1 + torch.randint(VOCAB - 1, (count,), generator=noise)).tolist()


def tree(rng: random.Random, size: int, vocab: int = VOCAB) -> TokenTree:
    """Nodes below any that come before them, siblings unlike."""
    nodes: dict[tuple[int, int], None] = {}
    while len(nodes) < size:
        nodes[rng.randrange(-1, len(nodes)), rng.randrange(1, vocab)] = None
    parents, tokens = zip(*nodes, strict=True) if nodes else ((), ())
    return TokenTree(tokens, parents)


@torch.inference_mode()
def hf_logits(model: Any, text: list[int], **options: Any) -> Any:
    """Return a text's logits [T, V] by transformers, in float32."""
    return model(torch.tensor([text]), **options).logits[0].float().numpy()


def hf_states(model: Any) -> list[Any]:
    """The hidden states [T, d] that each layer takes in and that the last one gives, in float32, by
    the next forward of transformers."""
    states: list[Any] = []

    def keep(_: Any, given: Any) -> None:
        values = given if isinstance(given, torch.Tensor) else given[0]
        states.append(values[0].float().numpy())

    layers = model.base_model.layers
    for layer in layers:
        layer.register_forward_pre_hook(keep)
    layers[-1].register_forward_hook(lambda layer, _, out: keep(layer, out))
    return states


def whole(model: CausalModel, text: list[int]) -> Any:
    """Hidden states and logits of a text, read at once."""
    hidden, _ = model.forward([Part(model.open(len(text)), text)])
    return hidden, model.logits(hidden)
