"""GliDe weights as modules of torch: written and read for training, and made of what was read."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from slipstream.files import make_folder, write_json, write_whole
from slipstream.models.format.digests import file_digest
from slipstream.models.glide.glide import GlideModel
from slipstream.models.glide.glide_config import CONFIG_NAME, WEIGHTS_NAME
from slipstream.models.glide.glide_weights import (
    BLOCKS_NAME,
    DRAFT_SHA256,
    HEAD,
    HEAD_SHA256,
    VOCAB,
    GlideBlocks,
    GlideWeights,
    read_arrays,
    read_parameters,
)
from slipstream.models.torch.arrays import TORCH_DTYPES, as_tensor


def save_glide(model: GlideModel, vocab: Tensor, directory: Path) -> None:
    """Write config and weights; vocab [V_d] int64 holds the target id of each head column."""
    make_folder(directory)
    dtype = TORCH_DTYPES[model.config.dtype]
    tensors = {name: value.detach().to(dtype) for name, value in model.state_dict().items()}
    write_tensors({**tensors, VOCAB: vocab.to(torch.int64)}, directory / WEIGHTS_NAME)
    write_json(directory / CONFIG_NAME, asdict(model.config))


def save_blocks(blocks: GlideBlocks, directory: Path) -> Path:
    """Write blocks beside the weights in `directory` that they were made of; return the file."""
    digests = {
        DRAFT_SHA256: bytes.fromhex(file_digest(directory / WEIGHTS_NAME)),
        HEAD_SHA256: blocks.head_sha256,
    }
    tensors = {name: as_tensor(own) for name, own in {**blocks.linears, HEAD: blocks.head}.items()}
    tensors |= {name: torch.tensor(list(own), dtype=torch.uint8) for name, own in digests.items()}
    write_tensors(tensors, directory / BLOCKS_NAME)
    return directory / BLOCKS_NAME


def load_weights(directory: Path) -> tuple[GlideModel, Tensor]:
    """The model, in the dtype of its file, and its vocab [V_d]; WeightsError when broken."""
    weights = read_parameters(directory)
    return glide_model(weights), as_tensor(weights.vocab)


def glide_model(weights: GlideWeights) -> GlideModel:
    """Return the modules of weights."""
    with torch.device("meta"):
        model = GlideModel(weights.config)
    tensors = {name: as_tensor(values) for name, values in weights.tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()


def write_tensors(tensors: Mapping[str, Tensor], path: Path, **metadata: str) -> None:
    """Write a safetensors file with texts beside its tensors, whole or not at all."""
    own = {name: value.contiguous() for name, value in tensors.items()}
    # Some readers ask for the format.
    write_whole(path, save(own, metadata={"format": "pt", **metadata}), mode=0o644)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; WeightsError when it is missing or broken."""
    return {name: as_tensor(values) for name, values in read_arrays(path).items()}
