"""A GliDe draft without cross-attention as a plain checkpoint, which any system can draft with.

Such a draft is a short model of its target's own kind (the "vanilla" draft of GliDe with a CaPE,
figure 4), with the target's embeddings and whole head. Refuses drafts that read the target: no
other system has such a layer.
"""

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.models.glide.glide import GlideModel, Rope
from slipstream.models.glide.glide_config import read_config
from slipstream.models.glide.glide_files import load_weights, write_tensors
from slipstream.models.glide.glide_weights import check_target
from slipstream.models.glide.torch_parts import TorchParts, load_torch_parts, rotary_tables
from slipstream.models.loading import find_sources, load_target_parts, require_causal
from slipstream.models.store.folder import WEIGHTS
from slipstream.models.store.resolve import resolve

_COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
)
_LAYER_PARTS = {"self_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_NUM_PROBES = 16
_TOLERANCE = 1e-3


def export_hf(weights: Path, target: str, out: Path) -> None:
    """Write the draft in `weights` as a checkpoint for transformers, whole or not at all.

    target: alias, path or hub id of the model that the draft was trained for. `InvalidRequest`
    where `out` holds something or the target has no directory of safetensors; `ModelMismatch` for
    a draft with cross-attention, another target, or one whose layers are not Llama-like.
    """
    require_exportable(read_config(weights).target_layers, out)
    folder, gguf = find_sources(resolve(target))
    if gguf is not None:
        raise InvalidRequest(f"{target} is a GGUF file, but a directory of safetensors is needed")
    model, _ = load_weights(weights)
    loaded = load_torch_parts(str(folder), dtype=model.config.dtype)
    parts = loaded.parts
    assert isinstance(parts, TorchParts), "loaded for torch"
    check_target(model.config, parts)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for path in sorted(found for name in _COPIED for found in folder.glob(name)):
            shutil.copyfile(path, part / path.name)
        _write(model, parts, require_causal(folder), part)
        _compare(model, parts, part)
        os.replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def require_exportable(target_layers: tuple[int, ...], out: Path) -> None:
    """Raise unless a draft that reads these layers can be written to `out`."""
    if target_layers:
        raise ModelMismatch(
            f"the draft reads target layers {', '.join(map(str, target_layers))}, which no other"
            " system can: only a draft trained with --no-cross becomes a checkpoint for them"
        )
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidRequest(f"{out} is there already, a checkpoint needs a directory of its own")


def _write(model: GlideModel, parts: TorchParts, config: Any, folder: Path) -> None:
    """Configuration and weights; ModelMismatch where the target's layers have other parts."""
    is_tied = parts.head.data_ptr() == parts.embeddings.data_ptr()
    short = _shortened(config, model.config.num_layers, is_tied=is_tied)
    dtype = getattr(torch, model.config.dtype)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(short, dtype=dtype)
    tensors = _tensors(model, parts)
    if odd := sorted(set(tensors) ^ set(skeleton.state_dict())):
        raise _unlike(config, f"its weights differ by {odd[0]}")
    if is_tied:
        del tensors["lm_head.weight"]
    write_tensors({name: value.to(dtype) for name, value in tensors.items()}, folder / WEIGHTS)
    skeleton.config.architectures = [type(skeleton).__name__]
    skeleton.config.save_pretrained(folder)


def _shortened(config: Any, num_layers: int, *, is_tied: bool) -> Any:
    """The target's configuration with the draft's depth; every layer sees its whole past."""
    if config.get_text_config() is not config:
        raise _unlike(config, "it is more than a text model")
    short = copy.deepcopy(config)
    short.num_hidden_layers, short.tie_word_embeddings = num_layers, is_tied
    if getattr(short, "layer_types", None):
        short.layer_types = ["full_attention"] * num_layers
    for name, value in (("sliding_window", None), ("use_sliding_window", False)):
        if hasattr(short, name):
            setattr(short, name, value)
    return short


def _tensors(model: GlideModel, parts: TorchParts) -> dict[str, Tensor]:
    """The draft's tensors by the names that Llama's have."""
    out = {"model.embed_tokens.weight": parts.embeddings, "lm_head.weight": parts.head}
    for name, value in model.state_dict().items():
        words = [_LAYER_PARTS.get(word, word) for word in name.split(".")]
        out[".".join(["model", *words])] = value
    return out


@torch.inference_mode()
def _compare(model: GlideModel, parts: TorchParts, folder: Path) -> None:
    """ModelMismatch unless transformers computes of the checkpoint what we do of the draft.

    Names alone prove nothing: other kinds of model scale embeddings, residuals or scores.
    """
    written = load_target_parts(str(folder), dtype="float32").model
    ids = torch.arange(_NUM_PROBES)[None] * (parts.vocab_size // _NUM_PROBES)
    rope = Rope(*rotary_tables(parts, _NUM_PROBES, dtype=torch.float32))
    states = model.float()(parts.embeddings[ids].float(), (), rope, torch.empty(0))
    ours, theirs = states @ parts.head.float().T, written(input_ids=ids).logits
    if not torch.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE * float(ours.std())):
        raise _unlike(written.config, "it computes something else of the same weights")


def _unlike(config: Any, reason: str) -> ModelMismatch:
    return ModelMismatch(
        f"a draft of a {config.model_type} target can't be written as one: {reason}, where"
        " Llama's layers are needed"
    )
