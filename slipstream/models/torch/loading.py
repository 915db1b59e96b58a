"""Loading of models of transformers: any decoder-only one, whole or a rank's part of it."""

from pathlib import Path
from typing import Any

import numpy as np
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

from slipstream.core.errors import InvalidRequest, ModelMismatch, WeightsError
from slipstream.models.cuda.layers import scale_linears
from slipstream.models.dtypes import AUTO, CPU, FP8, choose_dtype
from slipstream.models.format.architecture import eos_ids
from slipstream.models.format.families import require_read
from slipstream.models.format.folder import quiet_transformers, reading
from slipstream.models.format.gguf_file import MAX_LAYERS
from slipstream.models.format.resolve import resolve
from slipstream.models.format.safetensors_file import Safetensors
from slipstream.models.format.tokenizer import find_tokenizer, fitted
from slipstream.models.loaded import (
    LoadedModel,
    find_sources,
    generation_config,
    made_of,
    parse_device,
)
from slipstream.models.native.checkpoint import Checkpoint, is_fp8, read_config
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.native.library import NotNative
from slipstream.models.torch.arrays import start_torch, torch_dtype
from slipstream.models.torch.shards import require_split
from slipstream.models.torch.transformers_model import MAKING, account_config


def load_target_parts(
    name: str, *, dtype: str = AUTO, device: str = CPU, num_ranks: int = 1
) -> LoadedModel:
    """Load any decoder-only model of transformers by alias, path or hub id.

    Of several ranks, which have met, each loads its part by transformers' own plan.
    Raises `ModelNotFound`, `WeightsError` for files that are broken or not of the model's
    shape, `ModelMismatch` for another kind of model, `InvalidRequest` for dtype or device.
    """
    start_torch()
    chosen = choose_dtype(dtype, parse_device(device))
    path = resolve(name)
    folder, gguf = find_sources(path)
    generation_config(path)  # names faults that transformers does not
    what = f"{gguf.name} is a GGUF file" if gguf else f"{folder.name} is quantised already"
    if dtype == FP8 and (gguf or getattr(require_causal(folder), "quantization_config", None)):
        raise InvalidRequest(f"the dtype is fp8, but {what}: use auto")
    with quiet_transformers(), reading(path):
        is_scaled = dtype == FP8 and num_ranks == 1  # ranks round their parts later
        model = _load_model(folder, gguf, chosen, CPU if is_scaled else device, num_ranks)
        if is_scaled:  # the device never has the weights in another type
            scale_linears(model, device, head=model.get_output_embeddings())
            model.to(device)
        text = model.config.get_text_config()
        tokenizer = fitted(find_tokenizer(folder, gguf), path, text.vocab_size)
        model = model.eval().requires_grad_(False)
        return made_of(name, path, model, tokenizer, eos_ids(text.eos_token_id))


def _load_model(
    folder: Path, gguf: Path | None, dtype: "np.dtype[Any]", device: str, num_ranks: int
) -> Any:
    """Return a model whose tensors have gone to the device one by one."""
    if gguf is None:
        require_causal(folder)
    try:
        if gguf is not None:
            return GgufSource(gguf, dtype, is_dense=True).reference(is_lent=False, device=device)
        if is_fp8(folder, read_config(folder)):
            return Checkpoint(folder, dtype).reference(is_lent=False, device=device)
    except NotNative as reason:
        name = (gguf or folder).name
        raise WeightsError(f"{name} is quantised, and can't be read: {reason}") from None
    options: dict[str, Any] = {"use_safetensors": True, "dtype": torch_dtype(dtype)}
    if num_ranks == 1:
        options["device_map"] = {"": device}
    else:
        options["distributed_config"] = DistributedConfig(tp_size=num_ranks)
    with MAKING, reading(f"the weights in {folder}"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, **options
        )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise WeightsError(f"the weights in {folder} lack {missing[0]} ({len(missing)} in all)")
    Safetensors(folder).require_floats(name for name, _ in model.named_parameters())
    require_read(report["unexpected_keys"], str(folder), model.config.model_type)
    return model


def check_ranks(path: Path, num_ranks: int) -> None:
    """Raise `InvalidRequest` unless the model in a directory can be split so many ways."""
    folder, gguf = find_sources(path)
    if gguf:
        raise InvalidRequest(
            f"tensor_parallel is {num_ranks}, but {gguf.name} is a GGUF file, which can't be split"
        )
    config = require_causal(folder)
    if is_fp8(folder, read_config(folder)):
        raise InvalidRequest(
            f"tensor_parallel is {num_ranks}, but {folder.name} has FP8 weights, which stay whole"
        )
    require_split(config, num_ranks, name=folder.name)


def require_causal(folder: Path) -> Any:
    """Return the configuration in a directory.

    Raises `ModelMismatch` unless it is of a decoder-only model, `WeightsError` for a broken one.
    """
    with reading(folder / "config.json"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelMismatch(
            f"{folder.name} is a model of type {config.model_type}, "
            "but a decoder-only causal language model is needed"
        )
    account_config(read_config(folder), config)
    layers = getattr(config, "num_hidden_layers", 1)
    if not 1 <= layers <= MAX_LAYERS:
        raise WeightsError(
            f"{folder / 'config.json'} has {layers} layers, but 1 to {MAX_LAYERS} can be loaded"
        )
    return config
