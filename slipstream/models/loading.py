"""Loading of a model by its name. Dtype and device are decided here only.

Weights come from safetensors or GGUF, never from pickles, and no code of a model directory runs.
"""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slipstream.core.errors import InvalidRequest, ModelMismatch, WeightsError
from slipstream.models.cores import start_torch
from slipstream.models.dtypes import AUTO, BFLOAT16, CPU, FLOAT32, Q8, choose_dtype
from slipstream.models.native.checkpoint import Checkpoint, read_config
from slipstream.models.native.gguf_weights import GgufSource
from slipstream.models.native.library import NotNative, has_kernels, kernels
from slipstream.models.native.source import WeightSource
from slipstream.models.store.folder import brief, gguf_in, reading
from slipstream.models.store.gguf import quiet_transformers
from slipstream.models.store.gguf_file import MAX_LAYERS, MAX_STRINGS, GgufFile
from slipstream.models.store.gguf_tokenizer import read_gguf_tokenizer
from slipstream.models.store.resolve import resolve, short_name
from slipstream.models.store.wheel import Progress
from slipstream.models.target.architecture import eos_ids
from slipstream.models.target.families import require_read
from slipstream.models.tokenizer import NumberedTokenizer, fitted, keep, read_kept

_LOG = logging.getLogger("slipstream.models")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model, its tokenizer and what identifies them.

    `model` is a transformers model or a source of weights, `tokenizer` transformers' own or a
    `TextTokenizer`; `num_token_ids` counts ids up to the highest that the tokenizer gives.
    """

    model: Any
    tokenizer: Any
    model_id: str
    tokenizer_hash: str
    """SHA-256 of the numbering of tokens: equal where ids mean the same."""
    path: Path
    num_token_ids: int
    stop_token_ids: frozenset[int]
    """End-of-sequence ids by the generation config, the config and the tokenizer."""


def load_model(
    name: str,
    *,
    dtype: str = AUTO,
    device: str = CPU,
    progress: Progress | None = None,
    num_ranks: int = 1,
) -> LoadedModel:
    """Load a model to serve, by alias, path or hub id: a source of weights for native code where
    that computes it, without transformers; else as `load_target_parts` does, which lists errors."""
    choose_dtype(dtype, parse_device(device), native=has_kernels())
    path = resolve(name, progress=progress)
    folder, gguf = find_sources(path)
    try:
        source = find_source(folder, gguf, dtype, device, num_ranks=num_ranks)
    except NotNative as reason:
        # Of float16, which processors multiply slowly, `choose_dtype` has warned.
        is_slower = device == CPU and dtype != "float16" and has_kernels()
        cost = "; torch takes about twice as long" * is_slower
        level = logging.WARNING if is_slower else logging.INFO
        _LOG.log(level, "%s is loaded by transformers: %s%s", path.name, reason, cost)
        options: Any = {"progress": progress, "num_ranks": num_ranks}
        return load_target_parts(name, dtype=dtype, device=device, **options)
    with reading(path):
        arch = source.architecture
        tokenizer = fitted(find_tokenizer(folder, gguf), path, arch.vocab_size)
        return _loaded(name, path, source, tokenizer, arch.eos_ids | _generation_eos(folder))


def load_target_parts(
    name: str,
    *,
    dtype: str = AUTO,
    device: str = CPU,
    progress: Progress | None = None,
    num_ranks: int = 1,
) -> LoadedModel:
    """Load any decoder-only model of transformers by alias, path or hub id.

    Of several ranks, which have met, each loads its part by transformers' own plan.
    Raises `ModelNotFound`, `WeightsError` for files that are broken or not of the model's
    shape, `ModelMismatch` for another kind of model, `InvalidRequest` for dtype or device.
    """
    start_torch()
    chosen = choose_dtype(dtype, parse_device(device))
    path = resolve(name, progress=progress)
    folder, gguf = find_sources(path)
    with quiet_transformers(), reading(path):
        model = _load_model(folder, gguf, chosen, num_ranks)
        if num_ranks == 1:  # else parts are where they belong
            model = model.to(device)
        tokenizer = NumberedTokenizer.of(load_tokenizer(folder, gguf))
        text = model.config.get_text_config()
        tokenizer = fitted(tokenizer, path, text.vocab_size)
        named = getattr(model.generation_config, "eos_token_id", None)
        ends = eos_ids(named) | eos_ids(text.eos_token_id)
        return _loaded(name, path, model.eval().requires_grad_(False), tokenizer, ends)


def _loaded(
    name: str, path: Path, model: Any, tokenizer: NumberedTokenizer, ends: frozenset[int]
) -> LoadedModel:
    ends |= eos_ids(tokenizer.eos_token_id)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer.text,
        model_id=short_name(name),
        tokenizer_hash=tokenizer.vocab_hash,
        path=path,
        num_token_ids=tokenizer.num_ids,
        stop_token_ids=frozenset(token for token in ends if token < tokenizer.num_ids),
    )


def find_source(
    folder: Path,
    gguf: Path | None,
    dtype: str,
    device: str,
    *,
    num_ranks: int = 1,
    has_layers: bool = True,
) -> WeightSource:
    """The weights of a model for native code; `has_layers` as in `Checkpoint`.

    Raises `NotNative` where native code can't compute it, `WeightsError` for files that are broken
    or not of the model's shape.
    """
    if parse_device(device) != CPU or num_ranks > 1:
        raise NotNative(f"on {num_ranks} x {device} there are no native kernels")
    kernels()
    if gguf and dtype == Q8:
        raise InvalidRequest(
            f"the dtype is q8, but {gguf.name} is a GGUF file, whose blocks are computed as they"
            " are: use auto"
        )
    chosen = choose_dtype(dtype, CPU, native=True)
    if chosen not in (FLOAT32, BFLOAT16):
        raise NotNative(f"{dtype} has no native kernels")
    with reading(gguf or folder):
        if gguf:
            return GgufSource(gguf, chosen, is_dense=dtype != AUTO)
        return Checkpoint(folder, chosen, is_coded=dtype == Q8, has_layers=has_layers)


def find_tokenizer(folder: Path, gguf: Path | None) -> NumberedTokenizer:
    """The tokenizer of a model: as it was kept, or as transformers reads it now. Raises
    `WeightsError`."""
    if kept := read_kept(folder, gguf):
        return kept
    with quiet_transformers():
        return keep(load_tokenizer(folder, gguf), folder, gguf)


def _generation_eos(folder: Path) -> frozenset[int]:
    try:
        given = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        return eos_ids(given.get("eos_token_id"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return frozenset()


class IdentifiedModel(Protocol):
    """Model with a known numbering of tokens; a hash of None is not compared."""

    @property
    def model_id(self) -> str:
        """The name of the model in errors."""
        ...

    @property
    def tokenizer_hash(self) -> str | None: ...


def require_same_tokenizer(target: IdentifiedModel, draft: LoadedModel) -> None:
    """Raise `ModelMismatch` unless both number their tokens alike."""
    if target.tokenizer_hash not in (None, draft.tokenizer_hash):
        raise ModelMismatch(
            f"the draft {draft.model_id} numbers its tokens differently "
            f"(tokenizer {draft.tokenizer_hash[:12]}) than the target {target.model_id} "
            f"({str(target.tokenizer_hash)[:12]})"
        )


def parse_device(name: str) -> str:
    """Return the device of a name. Raises `InvalidRequest` for one that is not here."""
    if not _DEVICE.fullmatch(name):
        raise InvalidRequest(f"the device is {name!r}, but must be cpu, cuda or cuda:N")
    if name == CPU:
        return name
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest(f"the device {name!r} can't be used ({brief(error)})") from None
    return name


def find_sources(path: Path) -> tuple[Path, Path | None]:
    """The directory to load from, and the GGUF file in it when that is what holds the weights."""
    gguf = path if path.is_file() else gguf_in(path)
    return (gguf.parent, gguf) if gguf else (path, None)


def _load_model(folder: Path, gguf: Path | None, dtype: "np.dtype[Any]", num_ranks: int) -> Any:
    if gguf is not None:
        try:
            return GgufSource(gguf, dtype, is_dense=True).whole_model()
        except NotNative as reason:
            raise WeightsError(f"{gguf.name} can't be read: {reason}") from None
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    from slipstream.models.torch_arrays import torch_dtype

    options: dict[str, Any] = {"use_safetensors": True, "dtype": torch_dtype(dtype)}
    if num_ranks > 1:
        options["distributed_config"] = DistributedConfig(tp_size=num_ranks)
    require_causal(folder)
    with reading(f"the weights in {folder}"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, **options
        )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise WeightsError(f"the weights in {folder} lack {missing[0]} ({len(missing)} in all)")
    require_read(report["unexpected_keys"], str(folder), model.config.model_type)
    return model


def check_ranks(path: Path, num_ranks: int) -> None:
    """Raise `InvalidRequest` unless the model in a directory can be split so many ways."""
    from slipstream.models.parallel.shards import require_split

    folder, gguf = find_sources(path)
    if gguf:
        raise InvalidRequest(
            f"tensor_parallel is {num_ranks}, but {gguf.name} is a GGUF file, which can't be split"
        )
    require_split(require_causal(folder), num_ranks, name=folder.name)


def require_causal(folder: Path) -> Any:
    """Return the configuration in a directory.

    Raises `ModelMismatch` unless it is of a decoder-only model, `WeightsError` for a broken one.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    from slipstream.models.target.transformers_model import account_config

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


def load_tokenizer(folder: Path, gguf: Path | None) -> Any:
    """The tokenizer of a model, of transformers' kind. Raises `WeightsError`."""
    from transformers import AutoTokenizer

    with reading(f"the tokenizer in {folder}"):
        if gguf:
            return read_gguf_tokenizer(GgufFile(gguf))
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        last = max(found.get_vocab().values(), default=0)
        if last >= MAX_STRINGS:  # libraries go through all numbers up to the last one
            raise WeightsError(
                f"the tokenizer in {folder} has the id {last}, but {MAX_STRINGS - 1} is the most"
            )
        return found
