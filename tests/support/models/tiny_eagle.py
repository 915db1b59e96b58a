"""A tiny random EAGLE-3 head for a tiny target, in float32, in files, and what it computes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from slipstream.models.dtypes import FLOAT32
from slipstream.models.eagle.eagle import EagleModel
from slipstream.models.eagle.eagle_scorer import EagleScorer
from slipstream.models.eagle.eagle_weights import EagleWeights
from slipstream.models.format.rope import Rotary, rotary_tables
from slipstream.models.glide.glide import Rope
from slipstream.models.glide.glide_config import EagleConfig
from slipstream.models.glide.load import draft_scorer, target_parts
from slipstream.models.scorer import KvView, read
from slipstream.models.torch.arrays import as_array, numpy_dtype
from support.models import tiny

LAYERS = (1, 2, 3)


def config(target: Any, head_size: int | None = None, **changes: Any) -> EagleConfig:
    own = target.config
    hidden, vocab = own.hidden_size, own.vocab_size
    inv_freq = 1.0 / 1e4 ** (np.arange(0, 8, 2, dtype=np.float32) / 8)
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "rotary": Rotary(inv_freq)}
    sizes = {"vocab_size": vocab, "head_size": head_size or vocab - 12, "hidden_size": hidden}
    sizes |= {"target_hidden_size": hidden, "intermediate_size": 48}
    return EagleConfig(**{**sizes, **heads, "target_layers": LAYERS, **changes})


def model(config: EagleConfig, seed: int = 1) -> EagleModel:
    """Weights large enough that every part matters."""
    torch.manual_seed(seed)
    made = EagleModel(config)
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(torch.randn_like(value) * 0.3 + (value.ndim == 1))
    return made.eval()


def weights(model: EagleModel) -> EagleWeights:
    tensors = {name: as_array(value) for name, value in model.state_dict().items()}
    size = model.config.vocab_size - model.config.head_size
    return EagleWeights(model.config, tensors, np.arange(model.config.head_size) + size // 2)


def scorer(target: Any, model: EagleModel, *, native: bool = True) -> EagleScorer:
    return draft_scorer(weights(model), target_parts(target), dtype=FLOAT32, native=native)


def head(*, dtype: torch.dtype = torch.float32, max_lag: int = 32) -> EagleScorer:
    """An untrained head of `tiny.hf_model()`, whose states it reads up to the last layer's."""
    target = tiny.hf_model(dtype=dtype)
    made = weights(model(config(target, max_lag=max_lag)))
    return draft_scorer(made, target_parts(target), dtype=numpy_dtype(dtype))


def save(folder: Path, model: EagleModel, *, layer: str = "midlayer.", **fields: Any) -> Path:
    """Write a head as its publishers do; fields of None are left out of the config."""
    own, made = weights(model), model.config
    marks = np.zeros(made.vocab_size, np.bool_)
    marks[own.vocab] = True
    tensors = {name.replace("midlayer.", layer): value for name, value in own.tensors.items()}
    tensors |= {"d2t": own.vocab - np.arange(made.head_size), "t2d": marks}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    values = {**fields_of(made), **fields}
    kept = {name: value for name, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def save_for(target: Any, folder: Path) -> Path:
    """Save a head that reads the first three states of a target."""
    return save(folder, model(config(target, target_layers=(0, 1, 2))))


def fields_of(made: EagleConfig) -> dict[str, Any]:
    """Return the fields that EAGLE itself has in its config.json."""
    return {
        **{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "bos_token_id": 1},
        **{"vocab_size": made.vocab_size, "draft_vocab_size": made.head_size},
        **{"hidden_size": made.hidden_size, "intermediate_size": made.intermediate_size},
        **{"num_attention_heads": made.num_heads, "num_key_value_heads": made.num_kv_heads},
        **{"head_dim": made.head_dim, "num_hidden_layers": 1, "hidden_act": "silu"},
        **{"rms_norm_eps": made.rms_norm_eps, "rope_theta": 1e4, "max_position_embeddings": 128},
        **{"tie_word_embeddings": False, "torch_dtype": "float32"},
        "eagle_aux_hidden_state_layer_ids": list(made.target_layers),
    }


@torch.no_grad()
def states(target: Any, tokens: list[int]) -> list[Tensor]:
    """Return the states [T, d] that each layer of the target takes in."""
    ids = torch.tensor([tokens], device=target.device)
    found = target.model(ids, output_hidden_states=True).hidden_states
    return [state[0] for state in found]


def view(target: Any, tokens: list[int], count: int, skipped: int = 0) -> KvView:
    """The target's states after `tokens`, without those that are skipped; slots from `count` on
    hold nonsense."""
    layers, found = {}, states(target, tokens)
    for layer in LAYERS:
        own = found[layer].clone()
        own[count:] = 1e4
        kept = own[list(read(range(len(tokens)), skipped))]
        layers[len(found) - 1 + layer] = torch.stack(kept.chunk(2, -1))
    return KvView(count, layers, skipped)


@torch.no_grad()
def reference(
    target: Any, model: EagleModel, tokens: list[int], count: int, skipped: int = 0
) -> Tensor:
    """Scores [T - count, V_d] of the module that is trained behind the tokens from `count` on: the
    first is read with the target's state, the others with what the step before gave."""
    places = list(read(range(len(tokens)), skipped))
    steps, first = len(tokens) - count, count - 1 - skipped
    tables = (torch.tensor(own) for own in rotary_tables(model.config.rotary, len(tokens) + steps))
    positions = [*places, *range(len(tokens), len(tokens) + steps)]
    rope = Rope(*(torch.cat((own, own), -1)[positions] for own in tables))
    found = states(target, tokens)
    both = torch.cat([found[layer] for layer in model.config.target_layers], -1)[places]
    x = target.get_input_embeddings()(torch.tensor([tokens])[:, places])
    out, _ = model(x, both[None], rope, steps)
    return model.lm_head(out[:, 0, first])
